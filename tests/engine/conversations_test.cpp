// Conversations with models whose layers have fixed states: every turn's tokens are those that a cold cache
// gives, whatever is left of the turns before, and what is left is used.
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/golden_models.h"
#include "engine/submit.h"

namespace quire {
namespace {

constexpr int kTurns = 20;
constexpr int kConversations = 4;
constexpr int kInterval = 64;  // CacheLayout::state_interval

// What the cache of a case is like: slots of fixed states, and blocks in shares of what all conversations
// take.
struct CacheCase {
  std::string name, model;
  int num_slots = 0;  // 0: as many as are of use
  double blocks = 1;
  double swap_space = 0;
};
void PrintTo(const CacheCase& test, std::ostream* out) { *out << test.name; }

EngineConfig conversation_config(const std::string& model) {
  EngineConfig config = testing::golden_config(model);
  config.deterministic = true;
  config.max_num_seqs = 6;
  config.max_num_batched_tokens = 100;
  config.block_size = 8;
  return config;
}

class ConversationsTest : public ::testing::TestWithParam<CacheCase> {
 protected:
  int any(int from, int to) { return std::uniform_int_distribution<int>(from, to)(random_); }

  EngineRequest next_turn(std::vector<TokenId>& conversation) {
    const int length = any(3, 9);
    for (int i = 0; i < length; ++i) conversation.push_back(any(2, 300));
    EngineRequest request;
    request.prompt = conversation;
    request.params.max_tokens = any(1, 40);
    request.params.ignore_eos = true;
    request.params.seed = any(0, 9);
    request.params.temperature = any(0, 2) == 0 ? 0.0F : 1.2F;
    if (request.params.temperature > 0) request.params.n = any(1, 3);
    return request;
  }

  std::mt19937 random_{7};
};

TEST_P(ConversationsTest, HaveTheTokensOfAColdCacheAndReuseWhatIsLeft) {
  const CacheCase& test = GetParam();
  EngineConfig config = conversation_config(test.model);
  if (!std::filesystem::exists(config.model)) GTEST_SKIP() << "the model is not there";
  config.enable_prefix_caching = false;
  Engine cold(config);
  config.enable_prefix_caching = true;
  const RuntimeConfig& runtime = cold.config();
  const int rows = static_cast<int>(test.blocks * kConversations * 1000 / runtime.block_size());
  config.state_cache_memory =
      runtime.cache.state_bytes() * static_cast<std::size_t>(test.num_slots == 0 ? 200 : test.num_slots);
  config.kv_cache_memory =
      config.state_cache_memory +
      runtime.block_bytes() * static_cast<std::size_t>(rows * runtime.cache.layout.num_lanes());
  config.swap_space = test.swap_space;
  config.preemption_mode = test.swap_space > 0 ? "swap" : "recompute";
  Engine engine(config, open_model(config.model), {.poison_blocks = true});
  std::vector<std::vector<TokenId>> conversations(kConversations,
                                                  std::vector<TokenId>(100, 5));  // begin alike
  std::vector<int> known(kConversations);  // tokens that the last turn has computed
  std::int64_t num_reused = 0, num_reusable = 0;
  for (int turn = 0; turn < kTurns; ++turn) {
    SCOPED_TRACE(turn);
    std::vector<EngineRequest> requests;
    std::vector<std::future<RequestOutput>> outputs;
    std::vector<EngineRequest> others;  // nobody waits for them
    for (std::vector<TokenId>& conversation : conversations) {
      requests.push_back(next_turn(conversation));
      if (any(0, 3) != 0) continue;
      others.push_back(requests.back());
      others.back().prompt.push_back(7);
    }
    outputs = testing::submit(engine, requests);  // at once, so that they take the blocks from each other
    for (EngineRequest& other : others) engine.abort(engine.submit(std::move(other)));
    for (std::size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(i);
      const RequestOutput actual = outputs[i].get();
      const RequestOutput expected = testing::submit(cold, requests[i]).get();
      ASSERT_EQ(actual.outputs.size(), expected.outputs.size());
      for (std::size_t n = 0; n < expected.outputs.size(); ++n)
        ASSERT_EQ(actual.outputs[n].token_ids, expected.outputs[n].token_ids) << "output " << n;
      num_reused += actual.num_cached_tokens;
      num_reusable += std::max(0, known[i] - known[i] % kInterval);
      const std::vector<TokenId>& answer = expected.outputs[0].token_ids;
      conversations[i].insert(conversations[i].end(), answer.begin(), answer.end());
      known[i] = static_cast<int>(conversations[i].size()) - 1;
    }
  }
  const SchedulerStats stats = engine.stats().scheduler;
  EXPECT_EQ(stats.num_free_state_slots, stats.num_state_slots);
  EXPECT_EQ(stats.num_free_blocks, stats.num_blocks);
  const bool keeps_all = test.num_slots == 0 && test.blocks >= 1;
  EXPECT_GE(num_reused, keeps_all ? num_reusable : 1) << "of whole intervals of the turns before";
  EXPECT_EQ(stats.num_preemptions > 0, test.blocks < 1);
  EXPECT_EQ(stats.num_restored_blocks > 0, test.swap_space > 0);
}

// With the one slot that a sequence needs, no states are kept behind its prompt.
TEST(CacheEndTest, RowsWithoutStatesBehindThemAreComputedAgainAndTheReasonIsToldOf) {
  EngineConfig config = conversation_config("qwen3_5");
  if (!std::filesystem::exists(config.model)) GTEST_SKIP() << "the model is not there";
  config.max_num_seqs = 1;
  EngineRequest request;
  request.prompt.assign(200, 5);
  request.params.max_tokens = 1;
  request.params.temperature = 0;
  const std::size_t slot = Engine(config).config().cache.state_bytes();
  for (const std::size_t num_slots : {1, 4}) {
    config.state_cache_memory = num_slots * slot;
    Engine engine(config);
    const RequestOutput first = testing::submit(engine, request).get();
    EXPECT_EQ(to_string(first.cache_end.reason), "new");
    const RequestOutput second = testing::submit(engine, request).get();
    EXPECT_EQ(to_string(second.cache_end.reason), num_slots == 1 ? "no_checkpoint" : "whole");
    EXPECT_EQ(second.num_cached_tokens, num_slots == 1 ? 0 : 192);
    EXPECT_EQ(second.outputs[0].token_ids, first.outputs[0].token_ids);
    EXPECT_EQ(engine.stats().scheduler.num_state_slots, static_cast<int>(num_slots));
  }
}

INSTANTIATE_TEST_SUITE_P(Caches, ConversationsTest,
                         ::testing::Values(CacheCase{"warm", "qwen3_5"},
                                           CacheCase{"half_evicted", "qwen3_5", 8},
                                           CacheCase{"preempted", "qwen3_5", 12, 0.22},
                                           CacheCase{"swapped", "qwen3_5", 12, 0.22, 1.0 / 64},
                                           CacheCase{"warm_conv", "lfm2"},
                                           CacheCase{"swapped_conv", "lfm2", 9, 0.18, 1.0 / 64}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace quire
