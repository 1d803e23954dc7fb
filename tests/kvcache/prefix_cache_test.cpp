#include "kvcache/prefix_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kBlockSize = 8;

std::vector<TokenId> tokens_from(TokenId first, int count = kBlockSize) {
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class PrefixCacheTest : public ::testing::TestWithParam<int> {  // hash bits
 protected:
  // A new block that holds `tokens` after `parent`.
  PrefixCache::Link add(PrefixCache::Link parent, const std::vector<TokenId>& tokens,
                        std::uint64_t salt = 0) {
    return *cache_.insert(std::array{pool_.allocate()}, {parent, tokens, salt});
  }

  BlockPool pool_{4};
  CacheLayout layout_{.block_size = kBlockSize, .windows = {0}};
  PrefixCache cache_{pool_, layout_, 42, GetParam()};
};

TEST_P(PrefixCacheTest, FindsABlockByParentTokensAndSalt) {
  const auto first = add({}, tokens_from(0));
  const auto second = add(first, tokens_from(0));  // the same tokens elsewhere
  EXPECT_EQ(cache_.find({{}, tokens_from(0), 0}), first);
  EXPECT_EQ(cache_.find({first, tokens_from(0), 0}), second);
  EXPECT_EQ(cache_.find({second, tokens_from(0), 0}), std::nullopt);
  EXPECT_EQ(cache_.find({{}, tokens_from(1), 0}), std::nullopt);
  EXPECT_EQ(cache_.find({{}, tokens_from(0), 1}), std::nullopt);
  cache_.check();
}

TEST_P(PrefixCacheTest, MatchesTheLongestRunOfFullBlocks) {
  const auto first = add({}, tokens_from(0));
  const auto second = add(first, tokens_from(kBlockSize));
  const auto match = [&](int count) { return cache_.match(tokens_from(0, count), 0).rows; };
  EXPECT_EQ(match(kBlockSize - 1), std::vector<BlockId>{});
  EXPECT_EQ(match(2 * kBlockSize - 1), std::vector<BlockId>{first.block});
  EXPECT_EQ(match(4 * kBlockSize), (std::vector<BlockId>{first.block, second.block}));
}

TEST_P(PrefixCacheTest, KeepsTheFirstOfTwoEqualBlocks) {
  const auto first = add({}, tokens_from(0));
  const auto again = add({}, tokens_from(0));
  EXPECT_EQ(again, first);
  EXPECT_FALSE(cache_.contains(1));
  cache_.check();
}

TEST_P(PrefixCacheTest, KeepsAFreedBlockUntilItIsAllocatedAnew) {
  const auto first = add({}, tokens_from(0));
  pool_.release(first.block);
  EXPECT_EQ(cache_.find({{}, tokens_from(0), 0}), first);
  while (pool_.num_free() > 0) pool_.allocate();
  EXPECT_EQ(cache_.find({{}, tokens_from(0), 0}), std::nullopt);
  EXPECT_FALSE(cache_.contains(first.block));
  cache_.check();
}

TEST_P(PrefixCacheTest, AChildDiesWithTheOldContentsOfItsParent) {
  const auto parent = add({}, tokens_from(0));
  const auto child = add(parent, tokens_from(50));
  cache_.erase(parent.block);
  pool_.renew(parent.block);
  const auto rewritten = *cache_.insert(std::array{parent.block}, {{}, tokens_from(7), 0});
  EXPECT_EQ(rewritten.block, parent.block);
  EXPECT_EQ(cache_.find({rewritten, tokens_from(50), 0}), std::nullopt);
  EXPECT_EQ(cache_.find({parent, tokens_from(50), 0}), child);
  cache_.check();
}

TEST_P(PrefixCacheTest, AChildDiesWithItsParentEvenWhereTheParentIdReturns) {
  const auto parent = add({}, tokens_from(0));
  const auto child = add(parent, tokens_from(50));
  pool_.release(parent.block);
  while (pool_.num_free() > 0) pool_.allocate();
  const auto other = *cache_.insert(std::array{parent.block}, {{}, tokens_from(90), 0});
  ASSERT_EQ(other.block, parent.block);
  EXPECT_TRUE(cache_.contains(child.block));
  EXPECT_EQ(cache_.find({other, tokens_from(50), 0}), std::nullopt);
}

// A sequence that gives its first blocks back goes on adding what follows them.
TEST_P(PrefixCacheTest, AChildAddedWhenItsParentIsGoneIsNeverMatched) {
  const auto parent = add({}, tokens_from(0));
  pool_.release(parent.block);
  while (pool_.num_free() > 1) pool_.allocate();
  const BlockId reused = pool_.allocate();
  ASSERT_EQ(reused, parent.block);
  pool_.release(1);
  const auto child = add(parent, tokens_from(kBlockSize));
  EXPECT_TRUE(cache_.contains(child.block));
  EXPECT_EQ(cache_.match(tokens_from(0, 2 * kBlockSize), 0).rows, std::vector<BlockId>{});

  const auto again = *cache_.insert(std::array{reused}, {{}, tokens_from(0), 0});  // in the very block
  EXPECT_EQ(cache_.match(tokens_from(0, 2 * kBlockSize), 0).rows, std::vector<BlockId>{again.block});
  cache_.check();
}

TEST_P(PrefixCacheTest, ForgetsWhatItIsToldTo) {
  const auto first = add({}, tokens_from(0));
  const auto second = add({}, tokens_from(1));
  cache_.erase(first.block);
  cache_.erase(first.block);
  EXPECT_EQ(cache_.find({{}, tokens_from(0), 0}), std::nullopt);
  EXPECT_EQ(cache_.find({{}, tokens_from(1), 0}), second);
  cache_.clear();
  EXPECT_EQ(cache_.find({{}, tokens_from(1), 0}), std::nullopt);
  cache_.check();
}

TEST_P(PrefixCacheTest, TakesNoBlockThatNobodyHolds) {
  EXPECT_THROW(cache_.insert(std::array{0}, {{}, tokens_from(0), 0}), InternalError);
}

// Of three rows a prefix is hit where every lane has what its window wants behind it.
TEST_P(PrefixCacheTest, APrefixIsHitAsFarAsEveryLaneHasTheBlocksOfItsWindow) {
  const CacheLayout layout = {.block_size = kBlockSize, .windows = {9, 0}};
  BlockPool pool(8);
  PrefixCache cache(pool, layout, 42, GetParam());
  const auto add_row = [&](PrefixCache::Link parent, TokenId first, BlockId near, BlockId far) {
    return *cache.insert(std::array{near, far}, {parent, tokens_from(first), 0});
  };
  std::vector<BlockId> near, far;
  PrefixCache::Link last;
  for (int row = 0; row < 3; ++row) {
    near.push_back(pool.allocate());
    far.push_back(pool.allocate());
    last = add_row(last, row * kBlockSize, near.back(), far.back());
    EXPECT_EQ(last, cache.link(std::array{near.back(), far.back()}));
  }
  const auto num_rows = [&] { return cache.match(tokens_from(0, 3 * kBlockSize), 0).rows.size() / 2; };
  EXPECT_EQ(cache.match(tokens_from(0, 3 * kBlockSize), 0).rows,
            (std::vector{near[0], far[0], near[1], far[1], near[2], far[2]}));
  const auto reuse = [&](BlockId block) {
    pool.release(block);
    while (pool.num_free() > 0) pool.allocate();
  };
  reuse(near[0]);  // behind the second row, position 16 attends to 8 and later
  EXPECT_EQ(num_rows(), 3U);
  reuse(near[2]);
  EXPECT_EQ(num_rows(), 2U);
  // Whoever computes the third row again brings the block that was lost.
  const PrefixCache::Link found =
      add_row(cache.link(std::array{near[1], far[1]}), 2 * kBlockSize, near[2], kNoBlock);
  EXPECT_EQ(found, last);
  EXPECT_EQ(num_rows(), 3U);
  reuse(near[1]);
  EXPECT_EQ(num_rows(), 3U);
  reuse(far[1]);
  EXPECT_EQ(num_rows(), 0U);  // the first row's near block is gone, too
  cache.erase_chain(tokens_from(0, 3 * kBlockSize), 0);
  EXPECT_FALSE(cache.contains(far[0]));
  cache.check();
}

// With one bit half of all keys collide: nothing may rest on the hash.
INSTANTIATE_TEST_SUITE_P(HashBits, PrefixCacheTest, ::testing::Values(1, 4, 64));

}  // namespace
}  // namespace quire
