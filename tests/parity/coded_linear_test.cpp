// Products with matrices of codes: the reference against dequantised weights in float64; the kernels of every
// instruction set against the reference, and bitwise against themselves: alone, together, with one thread and
// with several.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/isa.h"
#include "backends/registry.h"
#include "expect_error.h"
#include "ops/ops.h"
#include "parity/coded_fixtures.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using testing::all_formats;
using testing::ints;
using testing::Matrix;
using testing::NamedFormat;
using testing::random_codes;
using testing::StoredTensor;

std::unique_ptr<Backend> backend_of(const std::string& isa, int threads = 1) {
  return make_backend({.device = "cpu", .cpu_isa = isa, .cpu_threads = threads});
}

std::vector<float> values_of(const WeightTensor& matrix) {
  std::vector<float> values(static_cast<std::size_t>(matrix.rows() * matrix.cols()));
  matrix.read_rows(0, Tensor(values.data(), DType::kF32, {matrix.rows(), matrix.cols()}));
  return values;
}

// A row of x as a product takes it.
std::vector<float> input_of(const LinearFormat& format, const Matrix& x, std::int64_t row) {
  std::vector<float> values;
  for (std::int64_t k = 0; k < x.tensor().dim(1); ++k) values.push_back(static_cast<float>(x.at(row, k)));
  return testing::rounded_input(format, values);
}

class CodedLinearTest : public ::testing::TestWithParam<std::tuple<std::string, NamedFormat>> {
 protected:
  const std::string& isa() const { return std::get<0>(GetParam()); }
  const LinearFormat& format() const { return std::get<1>(GetParam()).format; }
  std::mt19937 random_{7};
};

TEST_P(CodedLinearTest, EqualsTheProductWithDequantisedWeightsInAnyBatch) {
  for (const std::int64_t in : {32, 40, 800}) {
    for (const std::int64_t out : {1, 86}) {
      const std::vector<WeightGroup> parts = {random_codes(format(), out, in, random_),
                                              random_codes(format(), 71, in, random_)};
      std::vector<float> weights = values_of(*dequantized(parts[0]));
      const std::vector<float> lower = values_of(*dequantized(parts[1]));
      weights.insert(weights.end(), lower.begin(), lower.end());
      const auto one = backend_of(isa()), three = backend_of(isa(), 3);
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const auto one_weights = one->make_linear(parts, dtype),
                   three_weights = three->make_linear(parts, dtype);
        ASSERT_EQ(one_weights->bytes(), one->linear_bytes(parts, dtype));
        const Matrix bias(DType::kF32, 1, out + 71, random_);
        for (const std::int64_t tokens : {1, 2, 3, 9, 50}) {
          const Matrix x(dtype, tokens, in, random_);
          Matrix actual(DType::kF32, tokens, out + 71, random_),
              alone(DType::kF32, tokens, out + 71, random_);
          ops::linear(*three, actual.tensor(), x.tensor(), *three_weights, bias.vector());
          for (std::int64_t t = 0; t < tokens; ++t) {
            ops::linear(*one, alone.tensor().rows(t, 1), x.tensor().rows(t, 1), *one_weights, bias.vector());
            const std::vector<float> input = input_of(format(), x, t);
            for (std::int64_t o = 0; o < out + 71; ++o) {
              double sum = bias.at(0, o), size = 0;
              for (std::int64_t k = 0; k < in; ++k) {
                const double product = double{input[static_cast<std::size_t>(k)]} *
                                       weights[static_cast<std::size_t>(o * in + k)];
                sum += product;
                size += std::abs(product);
              }
              ASSERT_NEAR(actual.at(t, o), sum, 3e-6 * size + 1e-5)
                  << in << " to " << out << ": " << t << ", " << o;
            }
          }
          ASSERT_EQ(alone.bytes(), actual.bytes()) << in << " to " << out << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(CodedLinearTest, EmbeddingReadsTheSameWeights) {
  const WeightGroup table = random_codes(format(), 150, 288, random_);
  const std::vector<float> values = values_of(*dequantized(table));
  std::vector<std::int32_t> ids = {10, 73, 9, 159, 160, 12};
  const auto backend = backend_of(isa(), 2);
  Matrix out(DType::kF32, std::ssize(ids), 288, random_);
  ops::embedding(*backend, out.tensor(), *backend->make_linear({&table, 1}, DType::kBF16), ints(ids), 10,
                 0.5F);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::int64_t col = 0; col < 288; ++col) {
      const std::int64_t row = ids[i] - 10;
      const bool inside = row >= 0 && row < 150;
      EXPECT_FLOAT_EQ(static_cast<float>(out.at(static_cast<std::int64_t>(i), col)),
                      inside ? 0.5F * values[static_cast<std::size_t>(row * 288 + col)] : 0.0F);
    }
  }
}

TEST_P(CodedLinearTest, PartsOfBlocksStayWhatTheyWere) {
  const WeightGroup whole = random_codes(format(), 160, 512, random_);
  const std::vector<float> values = values_of(*dequantized(whole));
  const WeightGroup part = slice_cols(slice_rows(whole, 40, 70), 64, 192);
  const auto backend = backend_of(isa(), 2);
  const auto weights = backend->make_linear({&part, 1}, DType::kF32);
  Matrix x(DType::kF32, 2, 192, random_), out(DType::kF32, 2, 70, random_);
  ops::linear(*backend, out.tensor(), x.tensor(), *weights, {});
  const std::vector<float> input = input_of(part.format, x, 1);
  for (std::int64_t o = 0; o < 70; ++o) {
    double sum = 0, size = 0;
    for (std::int64_t k = 0; k < 192; ++k) {
      const double product = double{input[static_cast<std::size_t>(k)]} *
                             values[static_cast<std::size_t>((o + 40) * 512 + 64 + k)];
      sum += product;
      size += std::abs(product);
    }
    EXPECT_NEAR(out.at(1, o), sum, 3e-6 * size + 1e-5);
  }
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_isas()) names.emplace_back(to_string(isa));
  return names;
}

INSTANTIATE_TEST_SUITE_P(Formats, CodedLinearTest,
                         ::testing::Combine(::testing::ValuesIn(isa_names()),
                                            ::testing::ValuesIn(all_formats())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param).name;
                         });

INSTANTIATE_TEST_SUITE_P(RoundingFormats, CodedLinearTest,
                         ::testing::Combine(::testing::ValuesIn(isa_names()),
                                            ::testing::ValuesIn(testing::rounding_formats())),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param).name;
                         });

// Also where a code has no bits for it.
TEST(RoundedInputTest, ATokenWithAValueThatIsNoNumberHasNone) {
  std::mt19937 random(5);
  for (const NamedFormat& format : testing::rounding_formats()) {
    const WeightGroup group = random_codes(format.format, 20, 300, random);
    for (const std::string& isa : isa_names()) {
      const auto backend = backend_of(isa);
      const auto weights = backend->make_linear({&group, 1}, DType::kF32);
      Matrix x(DType::kF32, 14, 300, random), out(DType::kF32, 14, 20, random);
      x.tensor().data_as<float>()[3 * 300 + 299] = NAN;
      ops::linear(*backend, out.tensor(), x.tensor(), *weights, {});
      for (std::int64_t t = 0; t < 14; ++t)
        EXPECT_EQ(std::isnan(out.at(t, 7)), t == 3) << format.name << ", " << isa << ", token " << t;
    }
  }
}

// By hand: 448 or 127 over the largest, ties to even, and at most that much where the scale is given.
TEST(RoundedInputTest, CodesAreTheNearest) {
  const std::vector<float> x = {-4.48F, 0.0017F, 2.25F, 0.109F, 8.96F, 0};
  std::vector<float> codes(6), scales(6, -1);
  const auto quantize = [&](InputFormat input) {
    LinearFormat format;
    format.block_cols = 4;
    format.input = input;
    quantize_input(format, x.data(), 6, codes.data(), scales.data());
  };
  quantize({.code = InputFormat::Code::kE4m3});
  EXPECT_FLOAT_EQ(scales[0], 0.02F);
  EXPECT_EQ(codes, (std::vector<float>{-224, 0.0859375F, 112, 5.5F, 448, 0}));
  quantize({.code = InputFormat::Code::kE4m3, .in_blocks = true});
  EXPECT_FLOAT_EQ(scales[0], 0.01F);
  EXPECT_FLOAT_EQ(scales[1], 0.02F);
  EXPECT_EQ(codes, (std::vector<float>{-448, 0.171875F, 224, 11, 448, 0}));
  quantize({.code = InputFormat::Code::kE4m3, .scale = 0.015625F});
  EXPECT_EQ(scales[0], 0.015625F);
  EXPECT_EQ(codes, (std::vector<float>{-288, 0.109375F, 144, 7, 448, 0}));
  quantize({.code = InputFormat::Code::kI8});
  EXPECT_FLOAT_EQ(scales[0], 8.96F / 127);
  EXPECT_EQ(codes, (std::vector<float>{-64, 0, 32, 2, 127, 0}));
  const std::vector<float> zeros(6);
  LinearFormat format;
  format.input = {.code = InputFormat::Code::kI8};
  quantize_input(format, zeros.data(), 6, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 1);
  EXPECT_EQ(codes, zeros);
}

TEST(PackedCodesTest, CodesOfSixBitsTakeSixInMemory) {
  constexpr std::int64_t kRows = 64, kCols = 256;
  std::mt19937 random(5);
  for (const std::string& isa : isa_names()) {
    if (isa == "reference") continue;
    for (const std::int64_t block : {8, 16}) {  // blocks of 8 columns are no whole step
      const WeightGroup group = random_codes({.code = CodeType::kInt,
                                              .bits = 6,
                                              .code_offset = 32,
                                              .block_cols = block,
                                              .scale = ScaleType::kI8},
                                             kRows, kCols, random);
      EXPECT_EQ(backend_of(isa)->linear_bytes({&group, 1}, DType::kBF16),
                kRows * (kCols * (block == 8 ? 8 : 6) / 8 + kCols / block))
          << isa;
    }
  }
}

TEST(PackedCodesTest, AValueThatIsNoNumberIsRefused) {
  std::mt19937 random(3);
  const LinearFormat format = {
      .code = CodeType::kE4m3, .bits = 8, .block_cols = LinearFormat::kWhole, .scale = ScaleType::kF32};
  WeightGroup group = random_codes(format, 64, 64, random);
  auto codes = std::make_shared<StoredTensor>(DType::kU8, std::vector<std::int64_t>{64, 64});
  codes->data<std::uint8_t>()[99] = 0xFF;
  group.tensors[0].tensor = codes;
  for (const std::string& isa : isa_names())
    expect_error(
        [&] {
          backend_of(isa)->make_linear({&group, 1}, DType::kF32);
        },
        {"coded.weight", "not a number"});
}

}  // namespace
}  // namespace quire
