// Memory runs out in a block table: no block is lost.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "allocations.h"
#include "kvcache/block_table.h"

namespace quire {
namespace {

TEST(BlockTableAllocationTest, AFailedOneLosesNoBlock) {
  if (!testing::kReplacesNew) GTEST_SKIP() << "a sanitizer has replaced operator new";
  const CacheLayout layout = {.block_size = 8, .windows = {0, 1}};
  BlockPool pool(64);
  const auto num_held = [](const std::optional<BlockTable>& table) { return table ? table->num_held() : 0; };
  bool failed = true;
  for (int nth = 1; failed; ++nth) {
    SCOPED_TRACE(nth);
    std::vector<BlockCopy> copies;
    std::optional<BlockTable> table, fork;
    failed = testing::fails_at(nth, [&] {
      table.emplace(pool, layout);
      table->prepare_write(0, 30, copies);
      for (int first = 30; first < 100; first += 7) table->prepare_write(first, first + 7, copies);
    });
    EXPECT_EQ(pool.num_blocks() - pool.num_free(), num_held(table));
    failed = testing::fails_at(nth,
                               [&] {
                                 fork.emplace(*table);
                                 fork->prepare_write(17, 40, copies);
                                 fork->append(table->row(0));
                               }) ||
             failed;
    for (const BlockCopy& copy : copies) EXPECT_TRUE(copy.from != kNoBlock && pool.ref_count(copy.to) == 1);
    fork.reset();
    EXPECT_EQ(pool.num_blocks() - pool.num_free(), num_held(table));
    table.reset();
    EXPECT_EQ(pool.num_free(), pool.num_blocks());
    pool.check();
    EXPECT_TRUE(failed || nth > 5);
  }
}

}  // namespace
}  // namespace quire
