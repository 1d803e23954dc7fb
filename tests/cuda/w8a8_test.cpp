// Products of codes of 8 bits with activations rounded to 8 bits, against float64 over what the definition
// (quantize_input) gives.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <vector>

#include "backends/cuda/w8a8_linear.h"
#include "base/error.h"
#include "cuda/device_memory.h"
#include "cuda/quantized_fixtures.h"
#include "parity/ops_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using testing::DeviceTensor;
using testing::fp8;
using testing::w8a8_formats;

constexpr std::int64_t kWhole = LinearFormat::kWhole;

Tensor as_tensor(std::vector<std::byte>& bytes) {
  return Tensor(bytes.data(), DType::kU8, {std::ssize(bytes)});
}

// A random matrix on the device, and what it stands for.
class W8a8Weights {
 public:
  W8a8Weights(const LinearFormat& of_format, std::int64_t rows, std::int64_t cols, std::mt19937& random)
      : format(of_format),
        group_(testing::random_group(of_format, rows, cols, random)),
        bytes_(packed()),
        device_(as_tensor(bytes_)),
        matrix(w8a8_matrix(device_.tensor().data(), {&group_, 1})),
        values_(static_cast<std::size_t>(rows * cols)) {
    dequantized(group_)->read_rows(0, Tensor(values_.data(), DType::kF32, {rows, cols}));
  }
  const float* row(std::int64_t i) const { return values_.data() + i * matrix.cols; }

  LinearFormat format;

 private:
  std::vector<std::byte> packed() const {
    const W8a8Matrix layout = w8a8_matrix(nullptr, {&group_, 1});
    const QuantizedRows rows = quantized_rows({&group_, 1});
    std::vector<std::byte> bytes(w8a8_bytes(layout));
    w8a8_codes(rows, layout)->read_rows(0, Tensor(bytes.data(), DType::kU8, {layout.rows, layout.stride}));
    const std::vector<float> scales = w8a8_scales(rows, layout);
    std::memcpy(bytes.data() + std::ptrdiff_t{layout.rows} * layout.stride, scales.data(), scales.size() * 4);
    return bytes;
  }

  WeightGroup group_;
  std::vector<std::byte> bytes_;
  DeviceTensor device_;

 public:
  W8a8Matrix matrix;

 private:
  std::vector<float> values_;
};

// Rows of x as quantize_input rounds them.
struct Rounded {
  Rounded(const LinearFormat& format, const Tensor& x) : codes(static_cast<std::size_t>(x.numel())) {
    const std::int64_t cols = x.dim(1);
    std::vector<float> values(static_cast<std::size_t>(cols));
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      convert(x.dtype(), x.rows(t, 1).data(), DType::kF32, values.data(), values.size());
      std::vector<float> of_token(values.size());
      quantize_input(format, values.data(), cols, codes.data() + t * cols, of_token.data());
      scales.push_back(of_token);
      for (std::int64_t c = 0; c < cols; ++c)
        numbers.push_back(double{codes[static_cast<std::size_t>(t * cols + c)]} *
                          double{of_token[static_cast<std::size_t>(
                              format.input.in_blocks ? c / std::min(format.block_cols, cols) : 0)]});
    }
  }
  std::vector<float> codes;
  std::vector<std::vector<float>> scales;  // of each token
  std::vector<double> numbers;
};

class W8a8Test : public testing::DeviceTest {
 protected:
  void SetUp() override {
    testing::DeviceTest::SetUp();
    if (IsSkipped()) return;
    static std::vector<std::byte> library_bytes(LibraryMatmul::kWorkspaceBytes), bytes(1 << 20);
    library_memory_.emplace(as_tensor(library_bytes));
    library_.emplace(library_memory_->tensor());
    workspace_.emplace(as_tensor(bytes));
  }

  void linear(const Tensor& out, const Tensor& x, const W8a8Weights& weights, const Tensor& bias,
              bool is_deterministic) {
    cuda::linear(context_, is_deterministic ? nullptr : &*library_, out, x, weights.matrix, bias,
                 workspace_->tensor());
  }
  // The first `tokens` rows of x, on the device too, times the matrix.
  void expect_right(const char* name, const W8a8Weights& weights, const Tensor& x, const Tensor& device_x,
                    DType out_dtype, bool is_deterministic) {
    const std::int64_t tokens = x.dim(0), rows = weights.matrix.rows, cols = weights.matrix.cols;
    const Rounded rounded(weights.format, x);
    Matrix out(out_dtype, tokens, rows, random_);
    const Matrix bias(DType::kF32, 1, rows, random_);
    const DeviceTensor device_out(out.tensor()), device_bias(bias.vector());
    device_out.poison();
    const bool has_bias = tokens % 2 == 1;
    linear(device_out.tensor(), device_x, weights, has_bias ? device_bias.tensor() : Tensor(),
           is_deterministic);
    device_out.download(out.tensor());
    // Hopper's instructions for whole warpgroups keep some 14 bits of a sum of E4M3.
    const bool has_coarse_sums = weights.matrix.is_float() && !is_deterministic && x.dtype() != DType::kF32 &&
                                 !w8a8_matvec_supports(context_, device_x, weights.matrix);
    const double rounding = (out_dtype == DType::kF32   ? 3e-5
                             : out_dtype == DType::kF16 ? 1e-3
                                                        : 6e-3) +
                            (has_coarse_sums ? 2e-3 : 0.0);
    int wrong = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t o = 0; o < rows; ++o) {
        double sum = has_bias ? bias.at(0, o) : 0.0, squares = 0;
        for (std::int64_t k = 0; k < cols; ++k) {
          const double product =
              rounded.numbers[static_cast<std::size_t>(t * cols + k)] * double{weights.row(o)[k]};
          sum += product;
          squares += product * product;
        }
        const bool is_right = std::abs(out.at(t, o) - sum) <= rounding * (std::abs(sum) + std::sqrt(squares));
        if (!is_right && wrong++ == 0)
          ADD_FAILURE() << "token " << t << ", row " << o << ": " << out.at(t, o) << ", not " << sum;
      }
    }
    EXPECT_EQ(wrong, 0) << name << ": elements of [" << tokens << ", " << rows << ", " << cols << "], "
                        << x.describe() << " to " << out.tensor().describe() << is_deterministic;
  }

  std::mt19937 random_{7};
  std::optional<DeviceTensor> library_memory_, workspace_;
  std::optional<LibraryMatmul> library_;
};

TEST_F(W8a8Test, InputIsRoundedAsDefinedToTheBit) {
  for (const auto& [name, format] : w8a8_formats()) {
    for (const std::int64_t cols : {133, 264, 4096}) {
      const W8a8Weights weights(format, 3, cols, random_);
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        Matrix x(dtype, 40, cols, random_);
        std::vector<float> zeros(static_cast<std::size_t>(cols)), row(zeros.size());
        convert(DType::kF32, zeros.data(), dtype, x.tensor().rows(1, 1).data(), zeros.size());
        for (int token = 2; token < 12 && dtype != DType::kF16; ++token) {  // near the ends of the range
          for (float& value : row)
            value = std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random_),
                               token < 7 ? -20 * token : 11 * token);
          convert(DType::kF32, row.data(), dtype, x.tensor().rows(token, 1).data(), row.size());
        }
        const Rounded expected(format, x.tensor());
        const DeviceTensor device_x(x.tensor());
        const W8a8Matrix& m = weights.matrix;
        std::vector<std::byte> codes(static_cast<std::size_t>(40 * m.stride)),
            scales(static_cast<std::size_t>(160 * m.num_blocks));
        const DeviceTensor device_codes(Tensor(codes.data(), DType::kU8, {40, m.stride}));
        const DeviceTensor device_scales(Tensor(scales.data(), DType::kF32, {m.num_blocks, 40}));
        device_codes.poison();
        round_input(context_, {device_codes.tensor(), device_scales.tensor()}, device_x.tensor(), m);
        device_codes.download(Tensor(codes.data(), DType::kU8, {40, m.stride}));
        device_scales.download(Tensor(scales.data(), DType::kF32, {m.num_blocks, 40}));
        for (std::int64_t t = 0; t < 40; ++t) {
          for (std::int64_t c = 0; c < m.stride; ++c) {
            const auto byte = static_cast<std::uint8_t>(codes[static_cast<std::size_t>(t * m.stride + c)]);
            const float value =
                m.is_float() ? from_e4m3(byte) : static_cast<float>(static_cast<std::int8_t>(byte));
            ASSERT_EQ(value, c < cols ? expected.codes[static_cast<std::size_t>(t * cols + c)] : 0.0F)
                << name << ", token " << t << ", column " << c << " of " << x.tensor().describe();
          }
          for (int b = 0; b < m.num_blocks; ++b)
            ASSERT_EQ(reinterpret_cast<const float*>(scales.data())[b * 40 + t],
                      expected.scales[static_cast<std::size_t>(t)]
                                     [static_cast<std::size_t>(format.input.in_blocks ? b : 0)])
                << name;
        }
      }
    }
  }
}

TEST_F(W8a8Test, LinearIsRightForEveryFormatAndNumberOfTokens) {
  for (const auto& [name, format] : w8a8_formats()) {
    for (const auto& [rows, cols] :
         {std::pair{67, 200}, std::pair{256, 520}, std::pair{40, 133}, std::pair{144, 1024}}) {
      const W8a8Weights weights(format, rows, cols, random_);
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        const Matrix x(dtype, 300, cols, random_);
        const DeviceTensor device_x(x.tensor());
        for (const std::int64_t tokens : {1, 2, 3, 5, 8, 9, 16, 17, 33, 64, 300}) {
          for (const DType out : {DType::kF32, dtype})
            expect_right(name, weights, x.tensor().rows(0, tokens), device_x.tensor().rows(0, tokens), out,
                         false);
        }
        for (const std::int64_t tokens : {1, 9, 70})
          expect_right(name, weights, x.tensor().rows(0, tokens), device_x.tensor().rows(0, tokens), dtype,
                       true);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(W8a8Test, LinearIsRightOnLongRowsManyRowsAndLittleMemory) {
  for (const auto& [name, format] : w8a8_formats()) {
    for (const auto& [rows, cols] : {std::pair{100, 12296}, std::pair{18000, 512}, std::pair{2304, 2048}}) {
      const W8a8Weights weights(format, rows, cols, random_);
      const Matrix x(DType::kBF16, 40, cols, random_);
      const DeviceTensor device_x(x.tensor());
      const LaunchContext all = context_;
      for (const int shared_bytes : {all.shared_bytes, 99 * 1024}) {
        context_.shared_bytes = shared_bytes;
        for (const std::int64_t tokens : {1, 8, 16, 40})
          expect_right(name, weights, x.tensor().rows(0, tokens), device_x.tensor().rows(0, tokens),
                       DType::kF32, false);
      }
      context_ = all;
    }
  }
}

// In tiles of each size, cut along k and not.
TEST_F(W8a8Test, BatchedProductsAreNearThoseInAFixedOrder) {
  if (!is_hopper()) GTEST_SKIP() << "for Hopper";
  for (const auto& [rows, cols] :
       {std::pair{200, 264}, std::pair{200, 3080}, std::pair{4200, 3080}, std::pair{18000, 264}}) {
    const W8a8Weights weights(fp8(1, kWhole, false), rows, cols, random_);
    for (const std::int64_t tokens : {20, 40, 64, 80, 120, 190, 250}) {
      const Matrix x(DType::kBF16, tokens, cols, random_);
      Matrix out(DType::kF32, tokens, rows, random_), expected(DType::kF32, tokens, rows, random_);
      const std::int64_t code_bytes = tokens * weights.matrix.stride;
      std::vector<std::byte> bytes(static_cast<std::size_t>(code_bytes + 4 * tokens));
      const DeviceTensor device_x(x.tensor()), device_out(out.tensor()), memory(as_tensor(bytes));
      auto* const codes = memory.tensor().data_as<std::uint8_t>();
      const RoundedInput input = {
          Tensor(codes, DType::kU8, {tokens, weights.matrix.stride}, DeviceKind::kCuda),
          Tensor(codes + code_bytes, DType::kF32, {1, tokens}, DeviceKind::kCuda)};
      round_input(context_, input, device_x.tensor(), weights.matrix);
      w8a8_fixed_order_matmul(context_, device_out.tensor(), input, weights.matrix, {});
      device_out.download(expected.tensor());
      device_out.poison();
      w8a8_batched_matmul(context_, device_out.tensor(), input, weights.matrix, {});
      device_out.download(out.tensor());
      const std::vector<double> all = expected.values();
      const double largest = std::abs(*std::max_element(
          all.begin(), all.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
      for (std::int64_t t = 0; t < tokens; ++t)
        for (std::int64_t o = 0; o < rows; ++o)
          ASSERT_NEAR(out.at(t, o), expected.at(t, o), 2e-3 * largest) << tokens << ": " << t << ", " << o;
    }
  }
}

TEST_F(W8a8Test, LibraryTakesWholeRowsAndBlocksOfAHopper) {
  if (!is_hopper()) GTEST_SKIP() << "for Hopper";
  for (const bool in_blocks : {false, true}) {
    const W8a8Weights weights(in_blocks ? fp8(128, 128, true) : fp8(1, kWhole, false), 256, 512, random_);
    const Matrix x(DType::kBF16, 64, 512, random_), scales(DType::kF32, 4, 64, random_),
        out(DType::kBF16, 64, 256, random_);
    const DeviceTensor codes(Tensor(x.tensor().data(), DType::kU8, {64, 512})),
        device_scales(scales.tensor()), device_out(out.tensor());
    const Tensor weight(const_cast<std::uint8_t*>(weights.matrix.codes), DType::kU8, {256, 512},
                        DeviceKind::kCuda);
    EXPECT_TRUE(
        library_->multiply(context_, device_out.tensor(), codes.tensor(), weight, {},
                           {weights.matrix.scales, device_scales.tensor().data_as<float>(), in_blocks}))
        << in_blocks;
  }
}

TEST_F(W8a8Test, GatedIsTheActivatedGateTimesUp) {
  for (const auto& [name, format] : w8a8_formats()) {
    const W8a8Weights weights(format, 2 * 1544, 3080, random_);
    for (const std::int64_t tokens : {1, 5, 16, 80}) {
      const Matrix x(DType::kBF16, tokens, 3080, random_);
      Matrix out(DType::kBF16, tokens, 1544, random_), both(DType::kF32, tokens, 2 * 1544, random_);
      const DeviceTensor device_x(x.tensor()), device_out(out.tensor()), device_both(both.tensor());
      device_out.poison();
      const bool is_fused = tokens <= 8
                                ? format.block_cols >= 64
                                : weights.matrix.is_float() && format.block_cols == kWhole && is_hopper();
      ASSERT_EQ(fused_gated_linear(context_, device_out.tensor(), device_x.tensor(), weights.matrix,
                                   Activation::kSilu, SumOrder::kFree, workspace_->tensor()),
                is_fused);
      if (!is_fused) continue;
      linear(device_both.tensor(), device_x.tensor(), weights, {}, true);
      device_out.download(out.tensor());
      device_both.download(both.tensor());
      const std::vector<double> all = both.values();
      const double largest = std::abs(*std::max_element(
          all.begin(), all.end(), [](double a, double b) { return std::abs(a) < std::abs(b); }));
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t o = 0; o < 1544; ++o) {
          const double gate = both.at(t, o), up = both.at(t, o + 1544);
          const double value = quire::testing::activated(gate, Activation::kSilu) * up;
          // bf16's rounding, and that of sums in float32 or in 14 bits, which may cancel out.
          const double sums = (tokens > 8 ? 1e-3 : 1e-6) * largest;
          ASSERT_NEAR(out.at(t, o), value,
                      6e-3 * std::abs(value) + sums * (std::abs(gate) + std::abs(up) + sums))
              << name << t << ", " << o;
        }
      }
    }
  }
}

TEST_F(W8a8Test, DeterministicAndIntegersGiveARowTheSameBitsInAnyBatch) {
  for (const auto& [name, format] : w8a8_formats()) {
    const W8a8Weights weights(format, 112, 208, random_);
    const bool is_deterministic = weights.matrix.is_float();
    const Matrix x(DType::kBF16, 150, 208, random_);
    const DeviceTensor device_x(x.tensor());
    Matrix together(DType::kF32, 150, 112, random_), alone(DType::kF32, 150, 112, random_);
    const DeviceTensor device(together.tensor());
    linear(device.tensor(), device_x.tensor(), weights, {}, is_deterministic);
    device.download(together.tensor());
    device.poison();
    for (std::int64_t row = 0; row < 150; row += 7) {
      const std::int64_t count = std::min<std::int64_t>(7, 150 - row);
      linear(device.tensor().rows(row, count), device_x.tensor().rows(row, count), weights, {}, true);
    }
    device.download(alone.tensor());
    EXPECT_EQ(together.bytes(), alone.bytes()) << name;
  }
}

TEST_F(W8a8Test, RowsOfXMayBeStrided) {
  for (const auto& [name, format] : w8a8_formats()) {
    const W8a8Weights weights(format, 48, 128, random_);
    for (const std::int64_t tokens : {5, 40}) {
      for (const std::int64_t at : {16, 3}) {
        const Matrix wide(DType::kBF16, tokens, 160, random_);
        const DeviceTensor device_wide(wide.tensor());
        expect_right(name, weights, wide.tensor().columns(at, 128), device_wide.tensor().columns(at, 128),
                     DType::kF32, false);
      }
    }
  }
}

TEST_F(W8a8Test, EmbeddingReadsRows) {
  for (const auto& [name, format] : w8a8_formats()) {
    const W8a8Weights weights(format, 50, 264, random_);
    std::vector<std::int32_t> ids = {100, 149, 99, 117, 150, 108};
    const DeviceTensor device_ids(quire::testing::ints(ids));
    Matrix out(DType::kF32, 6, 264, random_);
    const DeviceTensor device_out(out.tensor());
    device_out.poison();
    embedding(context_, device_out.tensor(), weights.matrix, device_ids.tensor(), 100, 2.0F);
    device_out.download(out.tensor());
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const std::int64_t row = ids[t] - 100;
      for (std::int64_t c = 0; c < 264; ++c) {
        const float value = row < 0 || row >= 50 ? 0.0F : 2 * weights.row(row)[c];
        ASSERT_NEAR(out.at(static_cast<std::int64_t>(t), c), value, 1e-5 * (std::abs(value) + 1)) << name;
      }
    }
  }
}

TEST(W8a8LayoutTest, BlocksThatAPartEndsWithinGetAScaleForEachRow) {
  std::mt19937 random(3);
  const auto block_rows = [&](std::int64_t first_rows) {
    const std::vector<WeightGroup> parts = {
        testing::random_group(fp8(128, 128, true), first_rows, 256, random),
        testing::random_group(fp8(128, 128, true), 96, 256, random)};
    return w8a8_matrix(nullptr, parts).block_rows;
  };
  EXPECT_EQ(block_rows(256), 128);
  EXPECT_EQ(block_rows(192), 1);
}

TEST(W8a8LayoutTest, RowsOfInt8WhoseSumsMayNotFitAreRefused) {
  std::mt19937 random(3);
  LinearFormat format = {.code = CodeType::kInt,
                         .bits = 8,
                         .code_offset = 128,
                         .block_cols = kWhole,
                         .scale = ScaleType::kF32,
                         .input = {.code = InputFormat::Code::kI8}};
  const auto layout_of = [&](std::int64_t cols) {
    const WeightGroup group = testing::random_group(format, 1, cols, random);
    return w8a8_matrix(nullptr, {&group, 1});
  };
  EXPECT_EQ(layout_of(132096).cols, 132096);
  EXPECT_THROW(layout_of(132112), Error);
}

}  // namespace
}  // namespace quire::cuda
