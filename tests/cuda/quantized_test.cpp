// Products of quantised matrices, and what else reads them, against float64.
#include "backends/cuda/kernels/quantized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>
#include <vector>

#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/matmul.h"
#include "cuda/device_memory.h"
#include "cuda/quantized_fixtures.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;
using testing::NamedFormat;

Tensor as_tensor(std::vector<std::byte>& bytes) {
  return Tensor(bytes.data(), DType::kU8, {std::ssize(bytes)});
}

// A random matrix on the device, and what it stands for.
class DeviceMatrix {
 public:
  DeviceMatrix(const LinearFormat& format, std::int64_t rows, std::int64_t cols, std::mt19937& random)
      : group_(testing::random_group(format, rows, cols, random)),
        bytes_(testing::packed_bytes(group_)),
        device_(as_tensor(bytes_)),
        matrix_(quantized_matrix(device_.tensor().data(), quantized_layout({&group_, 1}),
                                 quantized_rows({&group_, 1}).format)),
        values_(static_cast<std::size_t>(rows * cols)) {
    dequantized(group_)->read_rows(0, Tensor(values_.data(), DType::kF32, {rows, cols}));
  }

  const QuantizedMatrix& get() const { return matrix_; }
  const float* row(std::int64_t i) const { return values_.data() + i * group_.cols; }
  std::int64_t rows() const { return group_.rows; }
  std::int64_t cols() const { return group_.cols; }

 private:
  WeightGroup group_;
  std::vector<std::byte> bytes_;
  DeviceTensor device_;
  QuantizedMatrix matrix_;
  std::vector<float> values_;
};

// x on both sides, and its products with a matrix in float64.
class Input {
 public:
  Input(DType dtype, std::int64_t tokens, const DeviceMatrix& matrix, std::mt19937& random)
      : x_(dtype, tokens, matrix.cols(), random),
        device_(x_.tensor()),
        products_(static_cast<std::size_t>(tokens * matrix.rows())),
        rows_(matrix.rows()) {
    std::vector<float> values(static_cast<std::size_t>(x_.tensor().numel()));
    convert(dtype, x_.tensor().data(), DType::kF32, values.data(), values.size());
    double squares = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t o = 0; o < rows_; ++o) {
        const float* a = values.data() + t * matrix.cols();
        const float* b = matrix.row(o);
        double sum = 0;
        for (std::int64_t k = 0; k < matrix.cols(); ++k) sum += double{a[k]} * double{b[k]};
        products_[static_cast<std::size_t>(t * rows_ + o)] = sum;
        squares += sum * sum;
      }
    }
    deviation_ = std::sqrt(squares / static_cast<double>(products_.size()));
  }

  const Tensor& x() const { return device_.tensor(); }
  double product(std::int64_t token, std::int64_t row) const {
    return products_[static_cast<std::size_t>(token * rows_ + row)];
  }
  double deviation() const { return deviation_; }

 private:
  Matrix x_;
  DeviceTensor device_;
  std::vector<double> products_;
  std::int64_t rows_;
  double deviation_;
};

// How far products may lie from those in float64, in parts of themselves and of their deviation: the output's
// rounding, and the weights' where they are rounded.
double tolerance(DType x, DType out, bool rounds_weights) {
  const double rounding = out == DType::kF32 ? 2e-5 : out == DType::kF16 ? 1e-3 : 6e-3;
  return rounding + (!rounds_weights || x == DType::kF32 ? 0.0 : x == DType::kF16 ? 1.5e-3 : 1.2e-2);
}

class QuantizedTest : public testing::DeviceTest {
 protected:
  void SetUp() override {
    testing::DeviceTest::SetUp();
    if (IsSkipped()) return;
    static std::vector<std::byte> library_bytes(LibraryMatmul::kWorkspaceBytes), bytes(1 << 18);
    library_memory_.emplace(as_tensor(library_bytes));
    library_.emplace(library_memory_->tensor());
    workspace_.emplace(as_tensor(bytes));
  }

  using Multiply = std::function<void(const Tensor& out, const Tensor& x, const Tensor& bias)>;

  // Runs it on the first `tokens` rows of the input.
  void expect_right(const char* name, const DeviceMatrix& matrix, const Input& input, std::int64_t tokens,
                    DType out_dtype, double relative, const Multiply& multiply) {
    Matrix out(out_dtype, tokens, matrix.rows(), random_);
    const Matrix bias(DType::kF32, 1, matrix.rows(), random_, static_cast<float>(input.deviation()));
    const bool has_bias = tokens % 2 == 1;
    const DeviceTensor device_out(out.tensor());
    const DeviceTensor device_bias(bias.vector());
    device_out.poison();
    multiply(device_out.tensor(), input.x().rows(0, tokens), has_bias ? device_bias.tensor() : Tensor());
    device_out.download(out.tensor());
    int wrong = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t o = 0; o < matrix.rows(); ++o) {
        const double value = input.product(t, o) + (has_bias ? bias.at(0, o) : 0.0);
        const bool right = std::abs(out.at(t, o) - value) <= relative * (std::abs(value) + input.deviation());
        if (!right && wrong++ == 0)
          ADD_FAILURE() << "token " << t << ", row " << o << ": " << out.at(t, o) << ", not " << value;
      }
    }
    EXPECT_EQ(wrong, 0) << name << ": elements of [" << tokens << ", " << matrix.rows() << ", "
                        << matrix.cols() << "], " << input.x().describe() << " to "
                        << out.tensor().describe();
  }
  Multiply linear_of(const DeviceMatrix& matrix, bool deterministic) {
    return [&, deterministic](const Tensor& out, const Tensor& x, const Tensor& bias) {
      linear(context_, deterministic ? nullptr : &*library_, out, x, matrix.get(), bias,
             workspace_->tensor());
    };
  }

  std::mt19937 random_{7};
  std::optional<DeviceTensor> library_memory_, workspace_;
  std::optional<LibraryMatmul> library_;
};

TEST_F(QuantizedTest, LinearIsRightForEveryFormatAndNumberOfTokens) {
  for (const auto& [name, format] : testing::published_formats()) {
    const bool is_rounded = format.code == CodeType::kTable && format.table == testing::kNf4Table;
    for (const auto& [rows, cols] : {std::pair{67, 200}, std::pair{259, 520}, std::pair{40, 133}}) {
      const DeviceMatrix matrix(format, rows, cols, random_);
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const Input input(dtype, 200, matrix, random_);
        for (const std::int64_t count :
             {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 33, 64, 128, 200}) {
          const bool rounds = is_rounded || (count > 192 && dtype != DType::kF32);
          for (const DType out : {DType::kF32, dtype}) {
            expect_right(name, matrix, input, count, out, tolerance(dtype, out, rounds),
                         linear_of(matrix, false));
          }
        }
        for (const std::int64_t tokens : {1, 9, 70})
          expect_right(name, matrix, input, tokens, dtype, tolerance(dtype, dtype, false),
                       linear_of(matrix, true));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(QuantizedTest, LinearIsRightOnLongRowsAndManyRows) {
  static std::vector<std::byte> bytes(2 << 20);  // x of long rows
  workspace_.emplace(as_tensor(bytes));
  for (const auto& [name, format] : testing::published_formats()) {
    if (std::string_view(name) != "int4 g128" && std::string_view(name) != "q4_k" &&
        std::string_view(name) != "fp8 blocks" && std::string_view(name) != "nvfp4") {
      continue;
    }
    for (const auto& [rows, cols] : {std::pair{100, 12296}, std::pair{9000, 640}, std::pair{2200, 4096}}) {
      const DeviceMatrix matrix(format, rows, cols, random_);
      const Input input(DType::kBF16, 40, matrix, random_);
      for (const std::int64_t tokens : {1, 8, 16, 24, 40})
        expect_right(name, matrix, input, tokens, DType::kF32, 2e-5, linear_of(matrix, false));
      LaunchContext small = context_;  // a device whose blocks have less memory
      for (const auto& [tokens, kilobytes] :
           {std::pair{1, 99}, {3, 99}, {8, 99}, {16, 99}, {40, 99}, {40, 64}}) {
        small.shared_bytes = kilobytes * 1024;
        expect_right(name, matrix, input, tokens, DType::kF32, 2e-5,
                     [&](const Tensor& out, const Tensor& x, const Tensor& bias) {
                       linear(small, &*library_, out, x, matrix.get(), bias, workspace_->tensor());
                     });
      }
    }
  }
}

TEST_F(QuantizedTest, GatedIsTheActivatedGateTimesUp) {
  for (const auto& [name, format] : testing::published_formats()) {
    const DeviceMatrix matrix(format, 2 * 3088, 264, random_);
    for (const std::int64_t tokens : {1, 5, 16}) {
      const Input input(DType::kBF16, tokens, matrix, random_);
      Matrix out(DType::kBF16, tokens, 3088, random_);
      const DeviceTensor device_out(out.tensor());
      device_out.poison();
      ASSERT_TRUE(fused_gated_linear(context_, device_out.tensor(), input.x(), matrix.get(),
                                     Activation::kSilu, SumOrder::kFree));
      device_out.download(out.tensor());
      const double deviation = input.deviation() * input.deviation() + input.deviation();
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < 3088; ++o) {
          const double value =
              quire::testing::activated(input.product(t, o), Activation::kSilu) * input.product(t, o + 3088);
          ASSERT_NEAR(out.at(t, o), value, 1.2e-2 * (std::abs(value) + deviation)) << name << t << ", " << o;
        }
      }
    }
  }
}

TEST_F(QuantizedTest, DeterministicGivesARowTheSameBitsInAnyBatch) {
  for (const auto& [name, format] : testing::published_formats()) {
    const DeviceMatrix matrix(format, 100, 200, random_);
    const Input input(DType::kBF16, 150, matrix, random_);
    Matrix together(DType::kF32, 150, 100, random_), alone(DType::kF32, 150, 100, random_);
    const DeviceTensor device(together.tensor());
    linear_of(matrix, true)(device.tensor(), input.x(), {});
    device.download(together.tensor());
    device.poison();
    for (std::int64_t row = 0; row < 150; row += 7) {
      const std::int64_t count = std::min<std::int64_t>(7, 150 - row);
      linear_of(matrix, true)(device.tensor().rows(row, count), input.x().rows(row, count), {});
    }
    device.download(alone.tensor());
    EXPECT_EQ(together.bytes(), alone.bytes()) << name;
  }
}

TEST_F(QuantizedTest, RowsOfXMayBeStrided) {
  const DeviceMatrix matrix(testing::published_formats().front().format, 48, 128, random_);
  for (const std::int64_t tokens : {5, 15, 40, 200}) {
    const Matrix wide(DType::kBF16, tokens, 160, random_);
    const DeviceTensor device_wide(wide.tensor());
    Matrix narrow(DType::kBF16, tokens, 128, random_);
    for (std::int64_t t = 0; t < tokens; ++t)
      std::memcpy(narrow.tensor().rows(t, 1).data(), wide.tensor().rows(t, 1).columns(16, 128).data(), 256);
    const DeviceTensor device_narrow(narrow.tensor());
    Matrix a(DType::kF32, tokens, 48, random_), b(DType::kF32, tokens, 48, random_);
    const DeviceTensor out(a.tensor());
    linear_of(matrix, false)(out.tensor(), device_wide.tensor().columns(16, 128), {});
    out.download(a.tensor());
    out.poison();
    linear_of(matrix, false)(out.tensor(), device_narrow.tensor(), {});
    out.download(b.tensor());
    for (std::size_t i = 0; i < a.values().size(); i += 37) ASSERT_NEAR(a.values()[i], b.values()[i], 1e-4);
  }
}

TEST_F(QuantizedTest, EmbeddingReadsRows) {
  for (const auto& [name, format] : testing::published_formats()) {
    const DeviceMatrix matrix(format, 50, 264, random_);
    std::vector<std::int32_t> ids = {100, 149, 99, 117, 150, 108};
    const DeviceTensor device_ids(quire::testing::ints(ids));
    Matrix out(DType::kF32, 6, 264, random_);
    const DeviceTensor device_out(out.tensor());
    device_out.poison();
    embedding(context_, device_out.tensor(), matrix.get(), device_ids.tensor(), 100, 2.0F);
    device_out.download(out.tensor());
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::int64_t row = ids[t] - 100;
      for (std::int64_t c = 0; c < 264; ++c) {
        const float value = row < 0 || row >= 50 ? 0.0F : 2 * matrix.row(row)[c];
        ASSERT_NEAR(out.at(static_cast<std::int64_t>(t), c), value, 1e-5 * (std::abs(value) + 1)) << name;
      }
    }
  }
}

TEST_F(QuantizedTest, GatherColsTakesThemInOrder) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    const Matrix x(dtype, 3, 300, random_);
    Matrix out(dtype, 3, 290, random_);
    std::vector<std::int32_t> cols(290);
    for (std::size_t i = 0; i < cols.size(); ++i) cols[i] = static_cast<std::int32_t>(i * 7 % 300);
    const DeviceTensor device_x(x.tensor()), device_out(out.tensor()),
        device_cols(quire::testing::ints(cols));
    gather_cols(context_, device_out.tensor(), device_x.tensor(), device_cols.tensor());
    device_out.download(out.tensor());
    for (std::int64_t t = 0; t < 3; ++t)
      for (std::int64_t i = 0; i < 290; ++i)
        ASSERT_EQ(out.at(t, i), x.at(t, cols[static_cast<std::size_t>(i)]));
  }
}

// What is read of memory for a weight of each.
TEST(QuantizedLayoutTest, TilesAreSmall) {
  std::mt19937 random(3);
  for (const auto& [name, format] : testing::published_formats()) {
    const WeightGroup group = testing::random_group(format, 64, 512, random);
    const QuantizedLayout layout = quantized_layout({&group, 1});
    const double bits =
        8.0 * layout.tile_bytes / (QuantizedLayout::kTileRows * QuantizedLayout::kTileColumns);
    EXPECT_LE(bits, format.bits <= 4 ? 6.0 : 9.0) << name;
    for (const auto& [format_name, expected] :
         {std::pair{"q4_k", 5.0}, std::pair{"int4 g128", 4.125}, std::pair{"nvfp4", 4.5}}) {
      if (std::string_view(name) == format_name) {
        EXPECT_EQ(bits, expected) << name;
      }
    }
    EXPECT_EQ(layout.tile_bytes % 16, 0) << name;
  }
}

}  // namespace
}  // namespace quire::cuda
