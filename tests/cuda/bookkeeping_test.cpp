// What the CUDA backend's kernels do to a step's token ids and block tables.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "backends/cuda/kernels/elementwise.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::ints;
using testing::DeviceTensor;

class BookkeepingTest : public testing::DeviceTest {};

TEST_F(BookkeepingTest, TakeSampledTokensReplacesTheIdsThatHaveAPlace) {
  std::vector<std::int32_t> ids(1000), places(1000), last(300);
  std::iota(ids.begin(), ids.end(), 0);
  std::iota(last.begin(), last.end(), 5000);
  for (std::size_t i = 0; i < places.size(); ++i) places[i] = i % 3 == 0 ? -1 : static_cast<int>(i * 7 % 300);
  const DeviceTensor device_ids(ints(ids)), device_places(ints(places)), device_last(ints(last));
  take_sampled_tokens(context_, device_ids.tensor(), device_places.tensor(), device_last.tensor());
  std::vector<std::int32_t> filled(1000);
  device_ids.download(ints(filled));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(filled[i], places[i] < 0 ? ids[i] : last[static_cast<std::size_t>(places[i])]);
  }
}

TEST_F(BookkeepingTest, UpdateBlockTablesSetsTheEntriesNamedAndNoOther) {
  std::vector<std::int32_t> tables(37 * 11, -7), entries, expected = tables;
  for (std::int32_t i = 0; i < 300; ++i) {  // 300 different places
    const std::int32_t row = i % 37, column = i / 37;
    entries.insert(entries.end(), {row, column, 100 + i});
    expected[static_cast<std::size_t>(row * 11 + column)] = 100 + i;
  }
  const DeviceTensor device_tables(Tensor(tables.data(), DType::kI32, {37, 11}));
  const DeviceTensor device_entries(Tensor(entries.data(), DType::kI32, {300, 3}));
  update_block_tables(context_, device_tables.tensor(), device_entries.tensor());
  device_tables.download(Tensor(tables.data(), DType::kI32, {37, 11}));
  EXPECT_EQ(tables, expected);
}

}  // namespace
}  // namespace quire::cuda
