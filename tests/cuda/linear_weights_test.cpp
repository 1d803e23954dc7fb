// Weights on their way to the device.
#include "backends/cuda/linear_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "base/error.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;

// Values that are told by their place, as of a large file.
class CountedWeight final : public WeightTensor {
 public:
  CountedWeight(std::int64_t rows, std::int64_t cols, int seed)
      : WeightTensor("weight", DType::kF32, {rows, cols},
                     [this](std::int64_t row, const Tensor& dst) { read(row, dst); }),
        seed_(seed) {}

  float value(std::int64_t place) const { return static_cast<float>((place * 7 + seed_) % 251); }

  std::int64_t broken_row = -1;

 private:
  void read(std::int64_t row, const Tensor& dst) const {
    if (row <= broken_row && broken_row < row + dst.dim(0)) fail("row {} cannot be read", broken_row);
    std::vector<float> values(static_cast<std::size_t>(dst.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = value(row * cols() + static_cast<std::int64_t>(i));
    convert(DType::kF32, values.data(), dst.dtype(), dst.data(), values.size());
  }

  int seed_;
};

class WeightLoaderTest : public testing::DeviceTest {};

TEST_F(WeightLoaderTest, PutsPartsBelowEachOtherAcrossItsBuffers) {
  // 60 MB in all as bf16, of parts that begin and end within a buffer; then some that are small.
  WeightLoader loader(context_.stream);
  for (const std::vector<std::int64_t>& rows : {std::vector<std::int64_t>{3001, 7, 9000}, {1}, {5, 1}}) {
    constexpr std::int64_t kCols = 2501;
    std::vector<std::shared_ptr<const CountedWeight>> weights;
    std::int64_t total = 0;
    for (const std::int64_t count : rows) {
      weights.push_back(std::make_shared<CountedWeight>(count, kCols, static_cast<int>(count)));
      total += count;
    }
    const WeightTensorPtr stacked = stack_rows({weights.begin(), weights.end()});
    std::vector<BFloat16> host(static_cast<std::size_t>(total * kCols));
    const Tensor values(host.data(), DType::kBF16, {total, kCols});
    const DeviceTensor device(values);
    device.poison();
    loader.load(*stacked, device.tensor());
    device.download(values);
    std::size_t i = 0;
    int wrong = 0;
    for (const auto& weight : weights) {
      for (std::int64_t place = 0; place < weight->rows() * kCols; ++place, ++i) {
        wrong += to_float(host[i]) != weight->value(place) ? 1 : 0;
      }
    }
    EXPECT_EQ(wrong, 0);
  }
}

TEST_F(WeightLoaderTest, PassesOnWhatAReaderSays) {
  WeightLoader loader(context_.stream);
  const auto weight = std::make_shared<CountedWeight>(100, 64, 1);
  weight->broken_row = 71;
  std::vector<float> host(6400);
  const DeviceTensor device(Tensor(host.data(), DType::kF32, {100, 64}));
  EXPECT_THAT([&] { loader.load(*weight, device.tensor()); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("row 71 cannot be read")));
}

}  // namespace
}  // namespace quire::cuda
