#include "kvcache/state_cache.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace quire {
namespace {

class StateCacheTest : public ::testing::Test {
 protected:
  // A new row, and a checkpoint of it that nobody holds.
  PrefixCache::Link checkpoint(int num_saved) {
    const BlockId block = blocks_.allocate();
    const PrefixCache::Link row = {block, blocks_.generation(block)};
    states_.enter(row, states_.take().id(), num_saved);
    return row;
  }
  bool is_there(PrefixCache::Link row) const { return states_.find(row) != kNoBlock; }

  BlockPool blocks_{16};
  StateCache states_{3, blocks_};
};

TEST_F(StateCacheTest, WhatSavesLeastGoesFirst) {
  const auto much = checkpoint(1000), little = checkpoint(64), more = checkpoint(500);
  states_.take();
  EXPECT_FALSE(is_there(little));
  EXPECT_TRUE(is_there(much) && is_there(more));
}

TEST_F(StateCacheTest, WhatSavesMuchGoesWhenNobodyHasUsedItForLong) {
  const auto much = checkpoint(300);
  std::vector<PrefixCache::Link> little;
  for (int i = 0; i < 12; ++i) little.push_back(checkpoint(100));
  EXPECT_FALSE(is_there(much));
  EXPECT_TRUE(is_there(little.back()));
}

TEST_F(StateCacheTest, AUseKeepsACheckpoint) {
  const auto used = checkpoint(100);
  for (int i = 0; i < 12; ++i) {
    states_.touch(states_.find(used));
    checkpoint(100);
  }
  EXPECT_TRUE(is_there(used));
}

TEST_F(StateCacheTest, OneOfARowThatIsGoneIsNotFoundAndGoesFirst) {
  const auto gone = checkpoint(1000), here = checkpoint(64), other = checkpoint(64);
  const BlockId slot = states_.find(gone);
  blocks_.renew(gone.block);
  EXPECT_EQ(states_.take().id(), slot);
  EXPECT_TRUE(is_there(here) && is_there(other));
}

TEST_F(StateCacheTest, ADemotedOneGoesBeforeTheOthers) {
  const auto demoted = checkpoint(1000), here = checkpoint(64), other = checkpoint(64);
  states_.demote(states_.find(demoted));
  states_.take();
  EXPECT_TRUE(!is_there(demoted) && is_there(here) && is_there(other));
}

TEST_F(StateCacheTest, ASlotThatIsHeldIsNotTaken) {
  const BlockRef held = states_.take();
  const BlockRef copy = held;
  EXPECT_EQ(states_.pool().ref_count(held.id()), 2);
  const BlockRef others[] = {states_.take(), states_.take()};
  EXPECT_EQ(states_.pool().num_free(), 0);
  EXPECT_THROW(states_.take(), InternalError);
  for (const BlockRef& other : others) EXPECT_NE(other.id(), held.id());
}

TEST_F(StateCacheTest, ARowHasOneCheckpoint) {
  const auto row = checkpoint(64);
  const BlockId first = states_.find(row);
  const BlockRef second = states_.take();
  states_.enter(row, second.id(), 64);
  EXPECT_EQ(states_.find(row), first);
  EXPECT_FALSE(states_.is_checkpoint(second.id()));
  states_.check();
}

}  // namespace
}  // namespace quire
