#include "kvcache/block_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kBlockSize = 8;
const CacheLayout kLayout = {.block_size = kBlockSize, .windows = {0}};
// A position attends to itself alone.
const CacheLayout kWindowed = {.block_size = kBlockSize, .windows = {1}};

std::vector<BlockId> ids(const BlockTable& table) { return {table.blocks().begin(), table.blocks().end()}; }

TEST(BlockTableTest, GrowsByTheBlocksThatASpanNeeds) {
  BlockPool pool(4);
  BlockTable table(pool, kLayout);
  std::vector<BlockCopy> copies;
  EXPECT_EQ(table.prepare_write(0, 8, copies), 0);
  EXPECT_EQ(table.size(), 1);
  EXPECT_EQ(table.prepare_write(8, 9, copies), 1);
  EXPECT_EQ(table.prepare_write(9, 16, copies), 2);
  EXPECT_EQ(table.size(), 2);
  EXPECT_TRUE(copies.empty());
}

TEST(BlockTableTest, SaysHowManyTokensFit) {
  BlockPool pool(3);
  BlockTable table(pool, kLayout);
  std::vector<BlockCopy> copies;
  EXPECT_EQ(table.writable(0, 100), 24);
  EXPECT_EQ(table.writable(0, 5), 5);
  table.prepare_write(0, 3, copies);
  EXPECT_EQ(table.writable(3, 100), 21);
  pool.allocate();
  pool.allocate();
  EXPECT_EQ(table.writable(3, 100), 5);
  EXPECT_THROW(table.prepare_write(3, 9, copies), InternalError);
  const BlockTable other(table);
  EXPECT_EQ(table.writable(3, 100), 0);  // a copy would need a block
}

TEST(BlockTableTest, GivesItsTailBackFirst) {
  BlockPool pool(3);
  std::vector<BlockCopy> copies;
  {
    BlockTable table(pool, kLayout);
    table.prepare_write(0, 24, copies);
    EXPECT_EQ(ids(table), (std::vector<BlockId>{0, 1, 2}));
  }
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_EQ(pool.allocate(), 1);
  EXPECT_EQ(pool.allocate(), 0);
}

// A table of a block and a half, which is forked.
class ForkedTableTest : public ::testing::Test {
 protected:
  ForkedTableTest() { table_.prepare_write(0, 12, copies_); }

  BlockPool pool_{4};
  BlockTable table_{pool_, kLayout};
  std::vector<BlockCopy> copies_;
};

TEST_F(ForkedTableTest, CopiesThePartlyFilledBlockBeforeItWrites) {
  BlockTable fork(table_);
  EXPECT_EQ(ids(fork), ids(table_));
  EXPECT_EQ(pool_.num_free(), 2);

  EXPECT_EQ(fork.prepare_write(12, 13, copies_), 1);
  EXPECT_EQ(copies_, (std::vector<BlockCopy>{{1, 2}}));
  EXPECT_EQ(ids(fork), (std::vector<BlockId>{0, 2}));
  EXPECT_EQ(table_.prepare_write(12, 13, copies_), 2);  // alone again: nothing to copy
  EXPECT_EQ(copies_.size(), 1U);
  EXPECT_EQ(ids(table_), (std::vector<BlockId>{0, 1}));
}

TEST_F(ForkedTableTest, CopiesNothingOfABlockThatItWritesFromItsBeginning) {
  BlockTable fork(table_);
  EXPECT_EQ(fork.prepare_write(8, 9, copies_), 1);
  EXPECT_TRUE(copies_.empty());
  EXPECT_EQ(ids(fork), (std::vector<BlockId>{0, 2}));
}

TEST(BlockTableTest, AForkAtABlockBorderCopiesNothing) {
  BlockPool pool(3);
  BlockTable table(pool, kLayout);
  std::vector<BlockCopy> copies;
  table.prepare_write(0, 8, copies);
  BlockTable fork(table);
  fork.prepare_write(8, 9, copies);
  table.prepare_write(8, 9, copies);
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(ids(fork), (std::vector<BlockId>{0, 1}));
  EXPECT_EQ(ids(table), (std::vector<BlockId>{0, 2}));
}

TEST(BlockTableTest, GivesItsFrontBackAndKeepsTheOthersInPlace) {
  BlockPool pool(6);
  BlockTable table(pool, kWindowed);
  std::vector<BlockCopy> copies;
  table.prepare_write(0, 28, copies);
  table.release_outside(16);
  table.release_outside(8);  // less than before: nothing
  EXPECT_EQ(ids(table), (std::vector<BlockId>{kNoBlock, kNoBlock, 2, 3}));
  EXPECT_EQ(table.num_held(), 2);
  EXPECT_EQ(pool.num_free(), 4);

  BlockTable fork(table);
  EXPECT_EQ(ids(fork), ids(table));
  EXPECT_EQ(fork.prepare_write(28, 33, copies), 3);
  EXPECT_EQ(copies, (std::vector<BlockCopy>{{3, 4}}));
  EXPECT_EQ(ids(fork), (std::vector<BlockId>{kNoBlock, kNoBlock, 2, 4, 5}));
  fork.release_outside(24);
  EXPECT_EQ(pool.ref_count(2), 1);  // the other's

  EXPECT_EQ(ids(fork), (std::vector<BlockId>{kNoBlock, kNoBlock, kNoBlock, 4, 5}));
  table.clear();
  fork.clear();
  EXPECT_EQ(table.size(), 0);
  EXPECT_EQ(table.position(), 0);
  EXPECT_EQ(pool.num_free(), 6);
}

TEST(BlockTableTest, MayBeginBehindBlocksThatItNeverHad) {
  BlockPool pool(4);
  BlockTable table(pool, kWindowed);
  table.release_outside(16);
  for (int i = 0; i < 3; ++i) table.append();
  EXPECT_EQ(ids(table), (std::vector<BlockId>{kNoBlock, kNoBlock, 0}));
  EXPECT_EQ(table.writable(20, 100), 28);
  EXPECT_EQ(pool.num_free(), 3);
}

TEST(BlockTableTest, EachLaneHoldsItsOwnWindow) {
  const CacheLayout layout = {.block_size = kBlockSize, .windows = {0, 12, 1}};
  BlockPool pool(16);
  BlockTable table(pool, layout);
  std::vector<BlockCopy> copies;
  EXPECT_EQ(table.writable(0, 100), 40);  // five rows of three
  table.prepare_write(0, 28, copies);
  EXPECT_EQ(table.size(), 4);
  table.release_outside(27);
  EXPECT_EQ(ids(table), (std::vector<BlockId>{0, kNoBlock, kNoBlock,  //
                                              3, kNoBlock, kNoBlock,  //
                                              6, 7, kNoBlock,         //
                                              9, 10, 11}));
  EXPECT_EQ(table.num_held(), 7);
  const BlockTable fork(table);
  EXPECT_EQ(table.writable(28, 100), 20);  // copies of a row, and two that are new, of nine
  EXPECT_EQ(table.prepare_write(28, 29, copies), 3);
  EXPECT_EQ(copies.size(), 3U);
  EXPECT_EQ(pool.ref_count(9), 1);
}

TEST(BlockTableTest, ALayoutKnowsTheRowsThatNoPositionAttendsToAnyMore) {
  const CacheLayout layout = {.block_size = kBlockSize, .windows = {1, 7, 8, 9, 30, 0}};
  for (int position = 0; position < 100; ++position) {
    for (int lane = 0; lane < layout.num_lanes(); ++lane) {
      const int window = layout.windows[static_cast<std::size_t>(lane)];
      int expected = 0;
      while (window > 0 && (expected + 1) * kBlockSize - 1 <= position - window) ++expected;
      EXPECT_EQ(layout.num_outside(lane, position), expected) << window << " at " << position;
    }
    EXPECT_EQ(layout.num_outside_all(position), 0) << "one lane holds all";
    const CacheLayout windowed = {.block_size = kBlockSize, .windows = {9, 30, 8}};
    EXPECT_EQ(windowed.num_outside_all(position), windowed.num_outside(1, position));
  }
}

TEST(BlockTableTest, ALayoutKnowsHowManyTokensACacheHolds) {
  const auto longest = [](std::vector<int> windows, int num_blocks) {
    return CacheLayout{.block_size = kBlockSize, .windows = std::move(windows)}.longest(num_blocks);
  };
  EXPECT_EQ(longest({0}, 5), 40);
  EXPECT_EQ(longest({0, 0}, 5), 16);
  EXPECT_EQ(longest({20}, 3), 24);
  EXPECT_EQ(longest({20}, 4), CacheLayout::kMaxTokens);  // which hold any window of 20
  EXPECT_EQ(longest({0, 20}, 7), 24);
  EXPECT_EQ(longest({0, 20}, 14), 80);
}

TEST(BlockTableTest, CountsTheBlocksThatTokensInARowTakeAtMost) {
  for (int num_tokens = 1; num_tokens < 40; ++num_tokens) {
    int most = 0;
    for (int first = 0; first < kBlockSize; ++first)
      most = std::max(most, (first + num_tokens - 1) / kBlockSize + 1);
    EXPECT_EQ(blocks_across(num_tokens, kBlockSize), most);
  }
}

// Many forks of forks write at random; what each has written it must find, and nobody else's.
TEST(BlockTableTest, ForksNeverSeeEachOthersTokens) {
  std::mt19937 random(3);
  struct Writer {
    BlockTable table;
    std::vector<int> written;
  };
  int num_copies = 0;
  for (int round = 0; round < 300; ++round) {
    BlockPool pool(24);
    std::map<std::pair<BlockId, int>, int> memory;
    std::list<Writer> writers;
    writers.push_back({BlockTable(pool, kLayout), {}});
    for (int i = 0; i < 60; ++i) {
      const auto which = std::next(writers.begin(), static_cast<std::ptrdiff_t>(random() % writers.size()));
      Writer& writer = *which;
      const auto length = static_cast<int>(writer.written.size());
      const auto kind = random() % 8;
      if (kind == 0 && writers.size() < 6) {
        writers.push_back({writer.table, writer.written});
      } else if (kind == 1 && writers.size() > 1) {
        writers.erase(which);
      } else if (const int count = writer.table.writable(length, 1 + static_cast<int>(random() % 12));
                 count > 0) {
        std::vector<BlockCopy> copies;
        writer.table.prepare_write(length, length + count, copies);
        for (const BlockCopy& copy : copies)
          for (int offset = 0; offset < kBlockSize; ++offset)
            memory[{copy.to, offset}] = memory[{copy.from, offset}];
        num_copies += static_cast<int>(copies.size());
        for (int position = length; position < length + count; ++position) {
          const BlockId block = writer.table.blocks()[static_cast<std::size_t>(position / kBlockSize)];
          ASSERT_EQ(pool.ref_count(block), 1);
          writer.written.push_back(static_cast<int>(random()));
          memory[{block, position % kBlockSize}] = writer.written.back();
        }
      }
      for (const Writer& each : writers) {
        for (std::size_t position = 0; position < each.written.size(); ++position) {
          const BlockId block = each.table.blocks()[position / kBlockSize];
          const auto offset = static_cast<int>(position % kBlockSize);
          ASSERT_EQ((memory[{block, offset}]), each.written[position]);
        }
      }
      pool.check();
    }
    writers.clear();
    ASSERT_EQ(pool.num_free(), pool.num_blocks());
  }
  EXPECT_GT(num_copies, 100);
}

}  // namespace
}  // namespace quire
