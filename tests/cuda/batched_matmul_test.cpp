// Matrix products for medium batches against float64, on shapes with tails.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "backends/cuda/kernels/batched_plan.h"
#include "backends/cuda/kernels/linear.h"
#include "cuda/device_memory.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;

struct Shape {
  std::int64_t tokens;
  std::int64_t out_features;
  std::int64_t in_features;
};

std::vector<float> floats(const Tensor& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.numel()));
  convert(matrix.dtype(), matrix.data(), DType::kF32, values.data(), values.size());
  return values;
}

// x and a weight that keeps the sums near 1, on the host and on the device.
class Operands {
 public:
  Operands(Shape shape, DType dtype, std::mt19937& random)
      : shape_(shape),
        x_(dtype, shape.tokens, shape.in_features, random),
        weight_(dtype, shape.out_features, shape.in_features, random,
                1.0F / std::sqrt(static_cast<float>(shape.in_features))),
        x_values_(floats(x_.tensor())),
        weight_values_(floats(weight_.tensor())),
        device_x_(x_.tensor()),
        device_weight_(weight_.tensor()) {}

  const Tensor& x() const { return device_x_.tensor(); }
  const Tensor& weight() const { return device_weight_.tensor(); }
  double product(std::int64_t token, std::int64_t row) const {
    double sum = 0;
    const float* x = x_values_.data() + token * shape_.in_features;
    const float* weight = weight_values_.data() + row * shape_.in_features;
    for (std::int64_t k = 0; k < shape_.in_features; ++k) sum += double{x[k]} * double{weight[k]};
    return sum;
  }

 private:
  Shape shape_;
  Matrix x_;
  Matrix weight_;
  std::vector<float> x_values_;
  std::vector<float> weight_values_;
  DeviceTensor device_x_;
  DeviceTensor device_weight_;
};

class BatchedMatmulTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    const Operands operands({1, 8, 64}, DType::kBF16, random_);
    if (!has_batched_matmul(operands.x(), operands.weight(), false)) GTEST_SKIP() << "made for Hopper alone";
  }

  // What `expected(token, column)` gives within the rounding of out's type.
  template <typename F>
  static void expect_near(const Matrix& out, const F& expected) {
    const DType dtype = out.tensor().dtype();
    const double relative = dtype == DType::kF32 ? 2e-5 : dtype == DType::kF16 ? 1e-3 : 8e-3;
    for (std::int64_t t = 0; t < out.tensor().dim(0); ++t) {
      for (std::int64_t o = 0; o < out.tensor().dim(1); ++o) {
        const double value = expected(t, o);
        ASSERT_NEAR(out.at(t, o), value, relative * (std::abs(value) + 1))
            << "token " << t << ", column " << o << " of " << out.tensor().describe();
      }
    }
  }

  std::mt19937 random_{6};
};

TEST_F(BatchedMatmulTest, IsRightForAnyShapeAndType) {
  for (const Shape shape : {Shape{17, 67, 64}, Shape{24, 1001, 192}, Shape{63, 130, 448}, Shape{64, 1, 1024},
                            Shape{65, 1024, 2048}, Shape{96, 515, 320}, Shape{128, 200, 3072},
                            Shape{200, 333, 128}, Shape{256, 577, 576}, Shape{300, 129, 1024},
                            Shape{24, 17409, 512}, Shape{48, 4033, 1024}, Shape{20, 25345, 256}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const Operands operands(shape, dtype, random_);
      const Matrix bias(DType::kF32, 1, shape.out_features, random_);
      const DeviceTensor device_bias(bias.vector());
      for (const DType out_dtype : {dtype, DType::kF32}) {
        Matrix out(out_dtype, shape.tokens, shape.out_features, random_);
        const DeviceTensor device_out(out.tensor());
        for (const bool has_bias : {false, true}) {
          device_out.poison();
          batched_matmul(context_, device_out.tensor(), operands.x(), operands.weight(),
                         has_bias ? device_bias.tensor() : Tensor(),
                         has_bias ? SumOrder::kFixed : SumOrder::kFree);
          device_out.download(out.tensor());
          expect_near(out, [&](std::int64_t t, std::int64_t o) {
            return operands.product(t, o) + (has_bias ? bias.at(0, o) : 0.0F);
          });
        }
      }
    }
  }
}

TEST_F(BatchedMatmulTest, GatedIsTheActivatedGateTimesUp) {
  for (const Shape shape : {Shape{17, 3072, 1024}, Shape{63, 72, 64}, Shape{100, 776, 512},
                            Shape{128, 1000, 192}, Shape{256, 200, 1024}}) {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const Operands operands({shape.tokens, shape.out_features * 2, shape.in_features}, dtype, random_);
      Matrix out(dtype, shape.tokens, shape.out_features, random_);
      const DeviceTensor device_out(out.tensor());
      for (const Activation activation : {Activation::kSilu, Activation::kGelu}) {
        device_out.poison();
        batched_matmul(context_, device_out.tensor(), operands.x(), operands.weight(), {},
                       activation == Activation::kSilu ? SumOrder::kFixed : SumOrder::kFree, activation);
        device_out.download(out.tensor());
        expect_near(out, [&](std::int64_t t, std::int64_t o) {
          return quire::testing::activated(operands.product(t, o), activation) *
                 operands.product(t, o + shape.out_features);
        });
      }
    }
  }
}

TEST_F(BatchedMatmulTest, RepeatsItsBits) {
  const Operands operands({131, 1024, 3072}, DType::kBF16, random_);
  Matrix out(DType::kF32, 131, 1024, random_);
  const DeviceTensor device_out(out.tensor());
  std::vector<std::byte> first;
  for (int i = 0; i < 5; ++i) {
    device_out.poison();
    batched_matmul(context_, device_out.tensor(), operands.x(), operands.weight(), {}, SumOrder::kFree);
    device_out.download(out.tensor());
    if (i == 0) first = out.bytes();
    ASSERT_EQ(out.bytes(), first);
  }
}

// Tokens alone, in tiles of each width, with parts of k in a cluster and in one block.
TEST_F(BatchedMatmulTest, InAFixedOrderATokenHasTheSameBitsInAnyBatch) {
  constexpr std::int64_t kTokens = 1100;
  for (const Shape shape : {Shape{kTokens, 1024, 3072}, Shape{kTokens, 6144, 1088}, Shape{kTokens, 80, 2048},
                            Shape{kTokens, 4096, 4096}, Shape{kTokens, 1024, 1024}}) {
    const Operands operands(shape, DType::kBF16, random_);
    for (const auto& [gated, dtype] :
         {std::pair{false, DType::kBF16}, {true, DType::kBF16}, {false, DType::kF32}}) {
      const std::int64_t columns = gated ? shape.out_features / 2 : shape.out_features;
      Matrix together(dtype, kTokens, columns, random_), some(dtype, kTokens, columns, random_);
      const DeviceTensor device_out(together.tensor());
      const auto multiply = [&](std::int64_t first, std::int64_t count) {
        const Tensor out = device_out.tensor().rows(first, count), x = operands.x().rows(first, count);
        batched_matmul(context_, out, x, operands.weight(), {}, SumOrder::kFixed,
                       gated ? Gate(Activation::kSilu) : Gate());
      };
      multiply(0, kTokens);
      device_out.download(together.tensor());
      device_out.poison();
      std::int64_t first = 0;
      for (const std::int64_t count : {1, 8, 40, 3, 64, 150, 256, 1, 577}) {
        multiply(first, count);
        first += count;
      }
      ASSERT_EQ(first, kTokens);
      device_out.download(some.tensor());
      ASSERT_EQ(some.bytes(), together.bytes()) << shape.out_features << " of " << shape.in_features;
    }
  }
}

TEST_F(BatchedMatmulTest, RowsOfXAndOfOutMayBeStrided) {
  const Operands wide({40, 72, 192}, DType::kBF16, random_);
  Matrix out(DType::kBF16, 40, 100, random_);
  const DeviceTensor device_out(out.tensor());
  device_out.poison();
  const Operands narrow({40, 72, 128}, DType::kBF16, random_);
  const Tensor columns = wide.x().columns(8, 128);
  batched_matmul(context_, device_out.tensor().columns(3, 72), columns, narrow.weight(), {}, SumOrder::kFree);
  batched_matmul(context_, device_out.tensor().columns(75, 25), columns, narrow.weight().rows(0, 25), {},
                 SumOrder::kFree);
  device_out.download(out.tensor());
  check(cudaMemcpy2D(narrow.x().data(), 128 * 2, columns.data(), 192 * 2, 128 * 2, 40,
                     cudaMemcpyDeviceToDevice),
        "copy");
  Matrix dense(DType::kBF16, 40, 72, random_);
  const DeviceTensor device_dense(dense.tensor());
  batched_matmul(context_, device_dense.tensor(), narrow.x(), narrow.weight(), {}, SumOrder::kFree);
  device_dense.download(dense.tensor());
  for (std::int64_t t = 0; t < 40; ++t) {
    for (std::int64_t o = 0; o < 72; ++o) ASSERT_EQ(out.at(t, o + 3), dense.at(t, o)) << t << ", " << o;
    for (std::int64_t o = 0; o < 25; ++o) ASSERT_NEAR(out.at(t, o + 75), dense.at(t, o), 0.02);
  }
}

TEST(BatchedPlanTest, InAFixedOrderPartsFollowFromTheWeightAlone) {
  for (const auto& [rows, slices] : {std::pair{1024, 48}, {1024, 16}, {4096, 192}, {24576, 64}, {72, 1}}) {
    const int split = plan_batched_matmul(1, rows, slices, SumOrder::kFixed).split;
    for (int tokens = 1; tokens <= 9000; tokens += 1 + tokens / 7) {
      const BatchedPlan plan = plan_batched_matmul(tokens, rows, slices, SumOrder::kFixed);
      ASSERT_EQ(plan.split, split) << tokens << " tokens, " << rows << " rows";
    }
  }
}

TEST(BatchedPlanTest, RingsHaveStagesAndFitInSharedMemory) {
  for (const auto& [order, of_codes] :
       {std::pair{SumOrder::kFree, false}, {SumOrder::kFixed, false}, {SumOrder::kFree, true}}) {
    for (int tokens = 1; tokens <= 9000; tokens += 1 + tokens / 7) {
      for (const int rows : {1, 1024, 6144, 151936}) {
        for (const int slices : {1, 2, 16, 192}) {
          const BatchedPlan plan = plan_batched_matmul(tokens, rows, slices, order, of_codes);
          constexpr std::array kTiles = {32, 48, 64, 96, 128};  // those that there are kernels for
          ASSERT_NE(std::ranges::find(kTiles, plan.tile_tokens), kTiles.end()) << tokens;
          ASSERT_TRUE(plan.tile_tokens != 96 || of_codes) << tokens;
          ASSERT_GE(plan.stages, std::min(2, slices / plan.split))
              << tokens << ", " << rows << ", " << slices;
          ASSERT_LE(plan.stages * plan.stage_bytes(), BatchedPlan::kMaxSharedBytes);
          ASSERT_LE(plan.split, std::max(1, slices));
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
