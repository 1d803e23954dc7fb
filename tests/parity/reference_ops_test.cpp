// The CPU reference against the formulas in double precision, on random odd shapes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <numeric>
#include <random>

#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using testing::ints;
using testing::Matrix;
using testing::plain;

class ReferenceOpsTest : public ::testing::TestWithParam<DType> {
 protected:
  void expect_near(double actual, double expected) const {
    const double relative = GetParam() == DType::kF32 ? 2e-6 : GetParam() == DType::kF16 ? 1e-3 : 8e-3;
    EXPECT_NEAR(actual, expected, relative * (std::abs(expected) + 1));
  }

  std::mt19937 random_{3};
  std::unique_ptr<Backend> backend_ = make_backend({.cpu_isa = "reference"});
};

TEST_P(ReferenceOpsTest, LinearMultipliesByEveryPartAndAddsTheBias) {
  for (const std::int64_t in : {1, 5, 16, 67}) {
    const Matrix x(GetParam(), 3, in, random_);
    const Matrix upper(GetParam(), 7, in, random_);
    const Matrix lower(GetParam(), 2, in, random_);
    const Matrix bias(DType::kF32, 1, 9, random_);
    Matrix out(GetParam(), 3, 9, random_);
    const std::vector<WeightGroup> parts = {plain(upper), plain(lower)};
    const auto weights = backend_->make_linear(parts, GetParam());
    ops::linear(*backend_, out.tensor(), x.tensor(), *weights, bias.vector());
    for (std::int64_t t = 0; t < 3; ++t) {
      for (std::int64_t o = 0; o < 9; ++o) {
        double sum = bias.at(0, o);
        for (std::int64_t k = 0; k < in; ++k)
          sum += x.at(t, k) * (o < 7 ? upper.at(o, k) : lower.at(o - 7, k));
        expect_near(out.at(t, o), sum);
      }
    }
  }
}

TEST_P(ReferenceOpsTest, EmbeddingTakesItsRangeOfRowsAndZerosElsewhere) {
  const Matrix table(GetParam(), 6, 5, random_);
  const std::vector<WeightGroup> parts = {plain(table)};
  const auto weights = backend_->make_linear(parts, GetParam());
  std::vector<std::int32_t> ids = {12, 9, 16, 15, 10};
  Matrix out(DType::kF32, 5, 5, random_);
  ops::embedding(*backend_, out.tensor(), *weights, ints(ids), 10);
  for (std::int64_t c = 0; c < 5; ++c) {
    EXPECT_EQ(out.at(0, c), table.at(2, c));
    EXPECT_EQ(out.at(1, c), 0);
    EXPECT_EQ(out.at(2, c), 0);
    EXPECT_EQ(out.at(3, c), table.at(5, c));
    EXPECT_EQ(out.at(4, c), table.at(0, c));
  }
}

TEST_P(ReferenceOpsTest, EmbeddingScalesItsRows) {
  const Matrix table(GetParam(), 6, 5, random_);
  const std::vector<WeightGroup> parts = {plain(table)};
  std::vector<std::int32_t> ids = {3};
  Matrix out(DType::kF32, 1, 5, random_);
  ops::embedding(*backend_, out.tensor(), *backend_->make_linear(parts, GetParam()), ints(ids), 0, 12.0F);
  for (std::int64_t c = 0; c < 5; ++c) EXPECT_EQ(out.at(0, c), static_cast<float>(12 * table.at(3, c)));
}

TEST_P(ReferenceOpsTest, AddNormAddsThenNormalises) {
  constexpr std::int64_t kSize = 37;
  const Matrix x(GetParam(), 3, kSize, random_);
  const Matrix weight(DType::kF32, 1, kSize, random_);
  const NormParams params = {.weight = weight.vector(), .bias = {}, .eps = 1e-5F, .sum_scale = 0.75F};
  const Matrix residual(DType::kF32, 3, kSize, random_);
  const std::vector<double> before = residual.values();
  Matrix added(GetParam(), 3, kSize, random_);
  Matrix plain(GetParam(), 3, kSize, random_);
  ops::add_norm(*backend_, added.tensor(), residual.tensor(), x.tensor(), 0.5F, params);
  ops::norm(*backend_, plain.tensor(), residual.tensor(), params);
  for (std::int64_t t = 0; t < 3; ++t) {
    const auto sum_at = [&](std::int64_t i) {
      return 0.75 * (before[static_cast<std::size_t>(t * kSize + i)] + 0.5 * x.at(t, i));
    };
    double squares = 0;
    for (std::int64_t i = 0; i < kSize; ++i) squares += sum_at(i) * sum_at(i);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const double sum = sum_at(i);
      EXPECT_FLOAT_EQ(static_cast<float>(residual.at(t, i)), static_cast<float>(sum));
      expect_near(added.at(t, i), sum / std::sqrt(squares / kSize + 1e-5) * weight.at(0, i));
      EXPECT_EQ(plain.at(t, i), added.at(t, i));
    }
  }
}

TEST_P(ReferenceOpsTest, WithABiasNormIsLayerNorm) {
  constexpr std::int64_t kSize = 37;
  Matrix x(DType::kF32, 3, kSize, random_, 5.0F);
  const Matrix weight(DType::kF32, 1, kSize, random_), bias(DType::kF32, 1, kSize, random_);
  const NormParams params = {.weight = weight.vector(), .bias = bias.vector(), .eps = 1e-5F};
  const std::vector<double> before = x.values();
  Matrix out(GetParam(), 3, kSize, random_);
  ops::norm(*backend_, out.tensor(), x.tensor(), params);
  ops::norm(*backend_, x.tensor(), x.tensor(), params);
  for (std::int64_t t = 0; t < 3; ++t) {
    const double* row = &before[static_cast<std::size_t>(t * kSize)];
    const double mean = std::accumulate(row, row + kSize, 0.0) / kSize;
    double squares = 0;
    for (std::int64_t i = 0; i < kSize; ++i) squares += (row[i] - mean) * (row[i] - mean);
    for (std::int64_t i = 0; i < kSize; ++i) {
      const double expected =
          (row[i] - mean) / std::sqrt(squares / kSize + 1e-5) * weight.at(0, i) + bias.at(0, i);
      expect_near(out.at(t, i), expected);
      EXPECT_NEAR(x.at(t, i), expected, 1e-5);
    }
  }
}

TEST_P(ReferenceOpsTest, ANormWithoutAWeightIsACopy) {
  const Matrix x(GetParam(), 3, 37, random_), residual(DType::kF32, 3, 37, random_);
  const std::vector<double> before = residual.values();
  Matrix copied(GetParam(), 3, 37, random_), sum(DType::kF32, 3, 37, random_);
  ops::norm(*backend_, copied.tensor(), x.tensor(), {});
  ops::add_norm(*backend_, sum.tensor(), residual.tensor(), x.tensor(), 2.0F, {});
  EXPECT_EQ(copied.bytes(), x.bytes());
  EXPECT_EQ(sum.bytes(), residual.bytes());
  for (std::int64_t i = 0; i < 3 * 37; ++i)
    EXPECT_FLOAT_EQ(static_cast<float>(sum.at(i / 37, i % 37)),
                    static_cast<float>(before[static_cast<std::size_t>(i)] + 2 * x.at(i / 37, i % 37)));
}

TEST_P(ReferenceOpsTest, Relu2IsTheSquareOfWhatIsPositive) {
  const Matrix x(GetParam(), 2, 13, random_, 3.0F);
  Matrix out(GetParam(), 2, 13, random_);
  ops::activate(*backend_, out.tensor(), x.tensor(), Activation::kRelu2);
  for (std::int64_t i = 0; i < 26; ++i) {
    const double v = std::max(0.0, x.at(i / 13, i % 13));
    expect_near(out.at(i / 13, i % 13), v * v);
  }
}

TEST_P(ReferenceOpsTest, GeluIsTheTanhForm) {
  Matrix x(GetParam(), 2, 13, random_, 3.0F);
  const std::vector<double> before = x.values();
  Matrix out(GetParam(), 2, 13, random_);
  ops::activate(*backend_, out.tensor(), x.tensor(), Activation::kGelu);
  ops::activate(*backend_, x.tensor(), x.tensor(), Activation::kGelu);
  for (std::int64_t i = 0; i < 26; ++i) {
    const double v = before[static_cast<std::size_t>(i)];
    const double expected =
        0.5 * v * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (v + 0.044715 * v * v * v)));
    expect_near(out.at(i / 13, i % 13), expected);
    EXPECT_EQ(x.at(i / 13, i % 13), out.at(i / 13, i % 13));
  }
}

TEST_P(ReferenceOpsTest, SiluMulGatesTheSecondHalf) {
  const Matrix gate_up(GetParam(), 2, 26, random_, 3.0F);
  Matrix out(GetParam(), 2, 13, random_);
  ops::activate_gate(*backend_, out.tensor(), gate_up.tensor(), Activation::kSilu);
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t i = 0; i < 13; ++i) {
      const double gate = gate_up.at(t, i);
      expect_near(out.at(t, i), gate / (1 + std::exp(-gate)) * gate_up.at(t, 13 + i));
    }
  }
}

TEST_P(ReferenceOpsTest, GatherRowsAndTakeSampledTokensCopyWhatIsNamed) {
  const Matrix x(GetParam(), 5, 3, random_);
  Matrix out(GetParam(), 2, 3, random_);
  std::vector<std::int32_t> rows = {4, 1};
  ops::gather_rows(*backend_, out.tensor(), x.tensor(), ints(rows));
  for (std::int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out.at(0, i), x.at(4, i));
    EXPECT_EQ(out.at(1, i), x.at(1, i));
  }
  std::vector<std::int32_t> ids = {10, 11, 12}, places = {-1, 1, 0}, last = {70, 71};
  ops::take_sampled_tokens(*backend_, ints(ids), ints(places), ints(last));
  EXPECT_EQ(ids, (std::vector<std::int32_t>{10, 71, 70}));
}

// A paged cache and one step over two sequences: 3 new tokens after 6, and 1 after 4.
class PagedCase {
 public:
  static constexpr int kHeads = 4, kKvHeads = 2, kDim = 6, kBlock = 4, kBlocks = 7;

  PagedCase(Backend& backend, DType dtype, std::mt19937& random)
      : qkv(dtype, 4, (kHeads + 2 * kKvHeads) * kDim, random),
        memory_(dtype, std::int64_t{kBlocks} * kKvHeads * 2 * kBlock, kDim, random) {
    const std::int64_t half = std::int64_t{kBlock} * kDim;
    const auto half_at = [&](std::int64_t offset) {
      return Tensor(memory_.tensor().data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(dtype),
                    dtype, {kBlocks, kKvHeads, kBlock, kDim})
          .with_strides({kKvHeads * 2 * half, 2 * half, kDim, 1});
    };
    cache = {half_at(0), half_at(half)};
    batch.num_sequences = 2;
    batch.num_tokens = 4;
    batch.max_query_len = 3;
    batch.max_seq_len = 9;
    batch.query_starts = ints(starts_);
    batch.seq_lens = ints(lengths_);
    batch.table_rows = ints(rows_);
    batch.positions = ints(positions_);
    batch.slot_mapping = ints(slots_);
    batch.block_tables = Tensor(tables_.data(), DType::kI32, {3, 3});
    std::vector<std::int32_t> entries = {2, 0, 5, 2, 1, 1, 2, 2, 3, 0, 0, 6, 0, 1, 2};
    ops::update_block_tables(backend, batch.block_tables, Tensor(entries.data(), DType::kI32, {5, 3}));
  }

  static constexpr int kBlocksOf[2][3] = {{5, 1, 3}, {6, 2, -1}};  // of the two sequences

  double key(int sequence, int position, int head, int i) const {
    return value_of(cache.keys, sequence, position, head, i);
  }
  double value(int sequence, int position, int head, int i) const {
    return value_of(cache.values, sequence, position, head, i);
  }

  Tensor blocks() const {
    return {memory_.tensor().data(), DType::kU8, {1, kBlocks, std::ssize(memory_.bytes()) / kBlocks}};
  }

  Matrix qkv;
  KvCacheLayer cache;
  AttentionBatch batch;

 private:
  static double value_of(const Tensor& half, int sequence, int position, int head, int i) {
    const std::int64_t offset = kBlocksOf[sequence][position / kBlock] * half.stride(0) +
                                head * half.stride(1) + position % kBlock * half.stride(2) + i;
    float result = 0;
    convert(half.dtype(),
            half.data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(half.dtype()), DType::kF32,
            &result, 1);
    return result;
  }

  Matrix memory_;
  std::vector<std::int32_t> starts_ = {0, 3, 4}, lengths_ = {9, 5}, rows_ = {2, 0}, positions_ = {6, 7, 8, 4},
                            slots_ = {1 * 4 + 2, 1 * 4 + 3, 3 * 4 + 0, 2 * 4 + 0},
                            tables_ = std::vector<std::int32_t>(9);
};

// Queries and keys are normed, rotated and scaled in float64.
struct PreparedHead {
  std::vector<double> values;

  void norm(const Matrix& weight) {
    double squares = 0;
    for (const double x : values) squares += x * x;
    const double inverse = 1 / std::sqrt(squares / static_cast<double>(values.size()) + 1e-6);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] *= inverse * weight.at(0, static_cast<std::int64_t>(i));
  }
  void rotate(const Matrix& cos_sin, int position) {
    const std::int64_t half = cos_sin.tensor().dim(1) / 2;
    for (std::int64_t i = 0; i < half; ++i) {
      double& a = values[static_cast<std::size_t>(i)];
      double& b = values[static_cast<std::size_t>(i + half)];
      const double c = cos_sin.at(position, i), s = cos_sin.at(position, i + half);
      const double rotated = a * c - b * s;
      b = b * c + a * s;
      a = rotated;
    }
  }
};

TEST(RowScaleTest, IsTheLeastPowerOfTwoThatHoldsTheRow) {
  for (const CacheCode code : {CacheCode::kE4m3, CacheCode::kE5m2}) {
    const float most = largest_of(code);
    EXPECT_EQ(row_scale(most, code), 1);
    EXPECT_EQ(row_scale(std::nextafter(most, 2 * most), code), 2);
    EXPECT_EQ(row_scale(most / 2, code), 0.5F);
    EXPECT_EQ(row_scale(3 * most, code), 4);
    EXPECT_TRUE(std::isnan(row_scale(std::nanf(""), code)));
    // Beside the exponents of other rows' values, that of zeros must not count.
    EXPECT_GT(row_scale(0, code), 0);
    EXPECT_LT(row_scale(0, code), row_scale(0x1p-60F, code));
  }
}

class RotateAndStoreTest : public ReferenceOpsTest {
 protected:
  void expect_prepared(bool norm_after_rotary, bool scaled, bool value_norm = false);
};

void RotateAndStoreTest::expect_prepared(bool norm_after_rotary, bool scaled, bool value_norm) {
  PagedCase paged(*backend_, GetParam(), random_);
  const std::vector<double> before = paged.qkv.values();
  const Matrix q_norm(DType::kF32, 1, PagedCase::kDim, random_);
  const Matrix k_norm(DType::kF32, 1, PagedCase::kDim, random_);
  const Matrix v_norm(DType::kF32, 1, PagedCase::kDim, random_);
  constexpr int kRotary = 4;  // of 6 dimensions
  Matrix cos_sin(DType::kF32, 16, kRotary, random_);
  const Matrix q_scale(DType::kF32, 1, 16, random_);
  AttentionInput input{.qkv = paged.qkv.tensor(),
                       .q_norm = q_norm.vector(),
                       .k_norm = k_norm.vector(),
                       .v_norm = value_norm ? v_norm.vector() : Tensor(),
                       .norm_eps = 1e-6F,
                       .norm_after_rotary = norm_after_rotary,
                       .cos_sin = cos_sin.tensor(),
                       .q_scale = scaled ? q_scale.vector() : Tensor(),
                       .num_heads = PagedCase::kHeads,
                       .num_kv_heads = PagedCase::kKvHeads,
                       .head_dim = PagedCase::kDim};
  backend_->rotate_and_store(input, paged.cache, paged.batch);

  const auto old_at = [&](std::int64_t t, std::int64_t c) {
    return before[static_cast<std::size_t>(t * paged.qkv.tensor().dim(1) + c)];
  };
  const int positions[] = {6, 7, 8, 4};
  for (int t = 0; t < 4; ++t) {
    for (int h = 0; h < PagedCase::kHeads + PagedCase::kKvHeads; ++h) {
      const bool is_key = h >= PagedCase::kHeads;
      const Matrix& norm = is_key ? k_norm : q_norm;
      PreparedHead head;
      for (int i = 0; i < PagedCase::kDim; ++i) head.values.push_back(old_at(t, h * PagedCase::kDim + i));
      if (!norm_after_rotary) head.norm(norm);
      head.rotate(cos_sin, positions[t]);
      if (norm_after_rotary) head.norm(norm);
      const double scale = scaled && !is_key ? q_scale.at(0, positions[t]) : 1;
      for (int i = 0; i < PagedCase::kDim; ++i) {
        const double actual = is_key ? paged.key(t == 3, positions[t], h - PagedCase::kHeads, i)
                                     : paged.qkv.at(t, h * PagedCase::kDim + i);
        expect_near(actual, scale * head.values[static_cast<std::size_t>(i)]);
      }
    }
    for (int h = 0; h < PagedCase::kKvHeads; ++h) {
      const int column = (PagedCase::kHeads + PagedCase::kKvHeads + h) * PagedCase::kDim;
      PreparedHead head;
      for (int i = 0; i < PagedCase::kDim; ++i) head.values.push_back(old_at(t, column + i));
      if (value_norm) head.norm(v_norm);
      for (int i = 0; i < PagedCase::kDim; ++i) {
        const double actual = paged.value(t == 3, positions[t], h, i);
        if (value_norm)
          expect_near(actual, head.values[static_cast<std::size_t>(i)]);
        else
          EXPECT_EQ(actual, old_at(t, column + i));
      }
    }
  }
}

TEST_P(RotateAndStoreTest, NormalisesRotatesAndWritesTheCache) { expect_prepared(false, false); }
TEST_P(RotateAndStoreTest, MayNormaliseWhatIsRotated) { expect_prepared(true, false); }
TEST_P(RotateAndStoreTest, ScalesQueriesByTheirPosition) { expect_prepared(false, true); }
TEST_P(RotateAndStoreTest, MayNormaliseValues) { expect_prepared(false, false, true); }

TEST_P(RotateAndStoreTest, WithoutKvHeadsOnlyQueriesChange) {
  PagedCase paged(*backend_, GetParam(), random_);
  const Matrix norm(DType::kF32, 1, PagedCase::kDim, random_);
  AttentionInput input;
  input.qkv = paged.qkv.tensor();
  input.q_norm = norm.vector();
  input.num_heads = PagedCase::kHeads + 2 * PagedCase::kKvHeads;  // all columns
  input.head_dim = PagedCase::kDim;
  const double key = paged.key(false, 6, 0, 0), value = paged.value(false, 6, 0, 0);
  const double query = paged.qkv.at(0, 0), last = paged.qkv.at(0, paged.qkv.tensor().dim(1) - 1);
  backend_->rotate_and_store(input, paged.cache, paged.batch);
  EXPECT_EQ(paged.key(false, 6, 0, 0), key);
  EXPECT_EQ(paged.value(false, 6, 0, 0), value);
  EXPECT_NE(paged.qkv.at(0, 0), query);
  EXPECT_NE(paged.qkv.at(0, paged.qkv.tensor().dim(1) - 1), last);
}

TEST_P(ReferenceOpsTest, AttentionIsCausalSoftmaxOverTheBlocksOfTheTable) {
  PagedCase paged(*backend_, GetParam(), random_);
  const std::int64_t width = PagedCase::kHeads * PagedCase::kDim;
  Matrix out(GetParam(), 4, width, random_);
  const Matrix slopes(DType::kF32, 1, PagedCase::kHeads, random_);
  const Matrix sinks(DType::kF32, 1, PagedCase::kHeads, random_);
  const int contexts[] = {7, 8, 9, 5};
  for (const bool alibi : {false, true}) {
    for (const int window : {0, 1, 3, 8}) {
      AttentionScores scores;
      scores.scale = 0.7F;
      scores.window = window;
      if (alibi) scores.alibi_slopes = slopes.vector();
      if (window % 3 == 0) scores.cap = 0.5F;
      const bool has_sink = window > 1;
      if (has_sink) scores.sinks = sinks.vector();
      backend_->attention(out.tensor(), paged.qkv.tensor().columns(0, width), paged.cache, paged.batch,
                          scores);
      for (int t = 0; t < 4; ++t) {
        const int first = window == 0 ? 0 : std::max(0, contexts[t] - window);
        for (int h = 0; h < PagedCase::kHeads; ++h) {
          std::vector<double> weights;
          double total = has_sink ? std::exp(sinks.at(0, h)) : 0;
          for (int j = first; j < contexts[t]; ++j) {
            double score = 0;
            for (int i = 0; i < PagedCase::kDim; ++i)
              score += paged.qkv.at(t, h * PagedCase::kDim + i) * paged.key(t == 3, j, h / 2, i);
            score *= 0.7;
            if (window % 3 == 0) score = 0.5 * std::tanh(score / 0.5);
            const double slope = alibi ? slopes.at(0, h) : 0;
            weights.push_back(std::exp(score + slope * (j - (contexts[t] - 1))));
            total += weights.back();
          }
          for (int i = 0; i < PagedCase::kDim; ++i) {
            double sum = 0;
            for (int j = first; j < contexts[t]; ++j)
              sum += weights[static_cast<std::size_t>(j - first)] * paged.value(t == 3, j, h / 2, i);
            expect_near(out.at(t, h * PagedCase::kDim + i), sum / total);
          }
        }
      }
    }
  }
}

TEST_P(ReferenceOpsTest, RoutingTakesTheLargestAndTheFirstOfEquals) {
  Matrix logits(DType::kF32, 2, 5, random_);
  const float rows[] = {1.0F, 3.0F, 2.0F, 3.0F, -9.0F, 0.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  std::memcpy(logits.tensor().data(), rows, sizeof rows);
  std::vector<std::int32_t> experts(6);
  Matrix weights(DType::kF32, 2, 3, random_);
  const ExpertRouting routing = {Tensor(experts.data(), DType::kI32, {2, 3}), weights.tensor()};
  ops::route_experts(*backend_, routing, logits.tensor(), {.normalize = false});
  EXPECT_EQ(experts, (std::vector<std::int32_t>{1, 3, 2, 0, 1, 2}));
  const double total = std::exp(1) + 2 * std::exp(3) + std::exp(2) + std::exp(-9);
  EXPECT_NEAR(weights.at(0, 0), std::exp(3) / total, 1e-6);
  EXPECT_NEAR(weights.at(0, 2), std::exp(2) / total, 1e-6);
  EXPECT_NEAR(weights.at(1, 1), 0.2, 1e-6);
  ops::route_experts(*backend_, routing, logits.tensor(), {});
  EXPECT_NEAR(weights.at(0, 0), std::exp(3) / (2 * std::exp(3) + std::exp(2)), 1e-6);
  EXPECT_NEAR(weights.at(1, 2), 1.0 / 3, 1e-6);
  const Matrix scales(DType::kF32, 1, 5, random_);
  ops::route_experts(*backend_, routing, logits.tensor(), {.expert_scales = scales.vector()});
  EXPECT_NEAR(weights.at(0, 0), scales.at(0, 1) * std::exp(3) / (2 * std::exp(3) + std::exp(2)), 1e-6);
  EXPECT_NEAR(weights.at(1, 2), scales.at(0, 2) / 3, 1e-6);
}

TEST_P(ReferenceOpsTest, ASelectionBiasChoosesAmongSigmoidsAndDoesNotWeighThem) {
  Matrix logits(DType::kF32, 1, 4, random_), weights(DType::kF32, 1, 2, random_);
  Matrix bias(DType::kF32, 1, 4, random_);
  const float row[] = {1.0F, 3.0F, 2.0F, -9.0F}, added[] = {0.0F, -0.5F, 0.0F, 2.0F};
  std::memcpy(logits.tensor().data(), row, sizeof row);
  std::memcpy(bias.tensor().data(), added, sizeof added);
  std::vector<std::int32_t> experts(2);
  const ExpertRouting routing = {Tensor(experts.data(), DType::kI32, {1, 2}), weights.tensor()};
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  RouterOptions options = {.sigmoid = true, .normalize = false, .scale = 3};
  ops::route_experts(*backend_, routing, logits.tensor(), options);
  EXPECT_EQ(experts, (std::vector<std::int32_t>{1, 2}));
  EXPECT_NEAR(weights.at(0, 1), 3 * sigmoid(2), 1e-6);
  options.normalize = true;
  options.sum_offset = 0.5F;
  options.selection_bias = bias.vector();
  ops::route_experts(*backend_, routing, logits.tensor(), options);
  EXPECT_EQ(experts, (std::vector<std::int32_t>{3, 2}));
  const double total = sigmoid(-9) + sigmoid(2) + 0.5;
  EXPECT_NEAR(weights.at(0, 0), 3 * sigmoid(-9) / total, 1e-6);
  EXPECT_NEAR(weights.at(0, 1), 3 * sigmoid(2) / total, 1e-6);
}

TEST_P(ReferenceOpsTest, CopyBlocksCopiesKeysAndValuesOfEveryHead) {
  PagedCase paged(*backend_, GetParam(), random_);
  std::vector<std::int32_t> pairs = {5, 6, 1, 2};  // the first sequence's first two blocks onto the second's
  const Tensor blocks = paged.blocks();
  ops::copy_blocks(*backend_, blocks, blocks, Tensor(pairs.data(), DType::kI32, {2, 2}));
  for (int position = 0; position < 8; ++position) {
    for (int h = 0; h < PagedCase::kKvHeads; ++h) {
      for (int i = 0; i < PagedCase::kDim; ++i) {
        EXPECT_EQ(paged.key(0, position, h, i), paged.key(1, position, h, i));
        EXPECT_EQ(paged.value(0, position, h, i), paged.value(1, position, h, i));
      }
    }
  }
}

const auto kDTypes = ::testing::Values(DType::kF32, DType::kBF16, DType::kF16);
const auto kDTypeName = [](const auto& test) { return std::string(to_string(test.param)); };
INSTANTIATE_TEST_SUITE_P(DTypes, ReferenceOpsTest, kDTypes, kDTypeName);
INSTANTIATE_TEST_SUITE_P(DTypes, RotateAndStoreTest, kDTypes, kDTypeName);

}  // namespace
}  // namespace quire
