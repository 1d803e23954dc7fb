#include "kvcache/kv_cache.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(PreemptionCostsTest, ComputingIsMadeOfWhatItsTimesTell) {
  const double token = 2e-6, pair = 1e-9;
  const int n = 512, before = 4096;
  const double alone = n * (token + 0.5 * n * pair);
  PreemptionCosts costs;
  costs.set_computing(n, alone, before, alone + n * pair * before);
  EXPECT_NEAR(costs.token, token, 1e-12);
  EXPECT_NEAR(costs.pair, pair, 1e-15);
  costs.set_computing(n, alone, 0, 0);
  EXPECT_DOUBLE_EQ(costs.token, alone / n);
  EXPECT_EQ(costs.pair, 0);
}

TEST(PreemptionCostsTest, SavingPaysWhereCopiesCostLessThanTokensAgain) {
  const PreemptionCosts costs{.block_copied = 40, .token = 2, .pair = 0.01};
  EXPECT_FALSE(costs.saving_pays(0, 16, 1));    // 40 against 33
  EXPECT_TRUE(costs.saving_pays(0, 160, 10));   // 400 against 448
  EXPECT_FALSE(costs.saving_pays(0, 160, 12));  // 480
  EXPECT_TRUE(costs.saving_pays(50, 160, 12));  // against 528
}

class KvCacheTest : public ::testing::Test {
 protected:
  static CacheLayout layout() {
    CacheLayout layout;
    layout.block_size = layout.state_interval = 4;
    return layout;
  }

  // Computes what is known of a sequence, as far as it is not in the cache.
  void compute(SequenceBlocks& blocks, std::span<const TokenId> tokens) {
    std::vector<BlockCopy> copies;
    cache_.admit(blocks, cache_.find(blocks, {}, nullptr, 0));
    if (cache_.has_states()) cache_.write_states(blocks);
    cache_.prepare_write(blocks, static_cast<int>(tokens.size()), true, false, copies);
    blocks.num_tokens = static_cast<int>(tokens.size());
    cache_.index(blocks, tokens);
  }
  int restore(SequenceBlocks& blocks, std::span<const TokenId> tokens, std::vector<BlockCopy>& restores) {
    cache_.admit(blocks, cache_.find(blocks, tokens, nullptr, 0));
    return cache_.restore(blocks, restores);
  }

  KvCache cache_{layout(),
                 {.num_blocks = 12, .num_host_blocks = 6, .num_state_slots = 2, .num_host_state_slots = 2},
                 true,
                 1,
                 64};
  const std::vector<TokenId> first_ = {1, 2, 3, 4, 5, 6, 7, 8}, second_ = {11, 12, 13, 14, 15, 16, 17, 18};
};

TEST_F(KvCacheTest, EachSequenceSavesAndRestoresItsOwnBlocks) {
  SequenceBlocks a = cache_.new_blocks(""), b = cache_.new_blocks("");
  compute(a, first_);
  compute(b, second_);
  EXPECT_EQ(cache_.save(a, false, {}), 2);
  EXPECT_EQ(cache_.save(b, false, {}), 2);
  a.clear();
  b.clear();
  StateCopies states;
  EXPECT_EQ(cache_.close_step(states).size(), 4U);
  EXPECT_EQ(states.saves.size(), 2U);
  std::vector<BlockCopy> restores;
  const std::vector<TokenId> others(9, 30);  // of which the prefix cache knows nothing
  EXPECT_EQ(restore(a, others, restores), 2);
  EXPECT_EQ(restore(b, others, restores), 2);
  EXPECT_EQ(restores.size(), 4U);
}

TEST_F(KvCacheTest, NothingIsSavedWhereItDoesNotPayOrThereIsNoRoom) {
  SequenceBlocks a = cache_.new_blocks("");
  compute(a, first_);
  EXPECT_EQ(cache_.save(a, false, {.block_copied = 5}), 0);
  EXPECT_EQ(cache_.save(a, false, {.block_copied = 3}), 2);
  SequenceBlocks b = cache_.new_blocks("");
  const std::vector<TokenId> long_one(20, 7);
  compute(b, long_one);
  EXPECT_EQ(cache_.save(b, false, {}), 0);  // 5 blocks, and 4 are free
  EXPECT_TRUE(b.saved.blocks.empty());
  EXPECT_EQ(cache_.host_pool().num_free(), 4);
}

TEST_F(KvCacheTest, OneTokenIsSaved) {
  SequenceBlocks a = cache_.new_blocks("");
  compute(a, std::span(first_).first(1));
  EXPECT_EQ(cache_.save(a, false, {}), 1);
}

TEST_F(KvCacheTest, WhatIsForgottenBeforeItsStepIsNotSaved) {
  SequenceBlocks a = cache_.new_blocks("");
  compute(a, first_);
  cache_.save(a, false, {});
  cache_.forget_saved(a.saved);
  StateCopies states;
  EXPECT_TRUE(cache_.close_step(states).empty());
  EXPECT_TRUE(states.saves.empty());
}

TEST_F(KvCacheTest, StatesThatBecomeACheckpointAreNotTheSequencesAnyMore) {
  SequenceBlocks a = cache_.new_blocks("");
  std::vector<BlockCopy> copies;
  cache_.admit(a, cache_.find(a, {}, nullptr, 0));
  cache_.write_states(a);
  cache_.prepare_write(a, 4, true, false, copies);
  a.num_tokens = 4;
  cache_.keep_states(a, false);
  ASSERT_EQ(a.states.kept.size(), 1U);
  const BlockId slot = a.states.kept.front().slot.id();
  cache_.index(a, std::span(first_).first(4));
  EXPECT_TRUE(a.states.kept.empty());
  EXPECT_TRUE(cache_.is_checkpoint(slot));
}

TEST_F(KvCacheTest, WhatWasGivenBackIsNoPrefixOfWhatComesThen) {
  SequenceBlocks a = cache_.new_blocks("");
  compute(a, first_);
  a.clear();
  compute(a, second_);
  EXPECT_EQ(cache_.find(cache_.new_blocks(""), second_, nullptr, 0).num_known, 8);
}

}  // namespace
}  // namespace quire
