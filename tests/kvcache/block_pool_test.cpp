#include "kvcache/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "base/error.h"

namespace quire {
namespace {

TEST(BlockPoolTest, ReusesTheBlockThatHasBeenFreeForLongest) {
  BlockPool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  pool.release(1);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPoolTest, ChangesTheGenerationWhenABlockIsAllocatedAndOnlyThen) {
  BlockPool pool(1);
  pool.allocate();
  EXPECT_EQ(pool.generation(0), 1U);
  pool.release(0);
  pool.acquire(0);  // revived
  EXPECT_EQ(pool.generation(0), 1U);
  EXPECT_EQ(pool.num_free(), 0);
  pool.release(0);
  pool.allocate();
  EXPECT_EQ(pool.generation(0), 2U);
}

TEST(BlockPoolTest, RefusesMisuseAndStaysAsItWas) {
  BlockPool pool(2);
  const BlockId block = pool.allocate();
  pool.release(block);
  EXPECT_THROW(pool.release(block), InternalError);  // twice
  for (const BlockId foreign : {-1, 2, 1 << 30}) {
    EXPECT_THROW(pool.release(foreign), InternalError);
    EXPECT_THROW(pool.acquire(foreign), InternalError);
    EXPECT_THROW(pool.ref_count(foreign), InternalError);
  }
  pool.check();
  EXPECT_EQ(pool.num_free(), 2);
  pool.allocate();
  pool.allocate();
  EXPECT_THROW(pool.allocate(), InternalError);  // none left
  pool.check();
}

TEST(BlockPoolTest, AgreesWithAModelOnRandomOperations) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const int num_blocks = 1 + static_cast<int>(random() % 12);
    BlockPool pool(num_blocks);
    std::map<BlockId, int> references;
    std::deque<BlockId> free;
    for (BlockId block = 0; block < num_blocks; ++block) free.push_back(block);
    for (int i = 0; i < 500; ++i) {
      const auto block = static_cast<BlockId>(random() % static_cast<unsigned>(num_blocks));
      switch (random() % 3) {
        case 0:
          if (free.empty()) break;
          ASSERT_EQ(pool.allocate(), free.front());
          references[free.front()] = 1;
          free.pop_front();
          break;
        case 1:
          pool.acquire(block);
          if (references[block]++ == 0) free.erase(std::find(free.begin(), free.end(), block));
          break;
        case 2:
          if (references[block] == 0) {
            ASSERT_THROW(pool.release(block), InternalError);
            break;
          }
          pool.release(block);
          if (--references[block] == 0) free.push_back(block);
          break;
      }
      pool.check();
      ASSERT_EQ(pool.num_free(), static_cast<int>(free.size()));
      ASSERT_EQ(pool.ref_count(block), references[block]);
    }
  }
}

}  // namespace
}  // namespace quire
