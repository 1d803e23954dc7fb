// The kernels of every instruction set this machine has against the CPU reference, on odd shapes; and bitwise
// against themselves: alone, together, with one thread and with several.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>

#include "backends/isa.h"
#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/ops_fixtures.h"
#include "parity/paged_batch.h"

namespace quire {
namespace {

using testing::CodedCache;
using testing::ints;
using testing::Matrix;
using testing::PagedBatch;
using testing::PagedShape;
using testing::plain;

std::vector<std::string> simd_names() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_isas()) {
    if (isa != CpuIsa::kReference) names.emplace_back(to_string(isa));
  }
  return names;
}

using Case = std::tuple<std::string, DType>;

class SimdOpsTest : public ::testing::TestWithParam<Case> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Backend> make(int threads) const {
    return make_backend({.device = "cpu", .cpu_isa = std::get<0>(GetParam()), .cpu_threads = threads});
  }
  // sums: how many products an element is the sum of, roughly.
  void expect_near(const Tensor& actual, const Tensor& expected, double sums = 1) const {
    ASSERT_EQ(actual.dtype(), expected.dtype());
    const double rounding = actual.dtype() == DType::kF32   ? 1e-6
                            : actual.dtype() == DType::kF16 ? 1e-3
                                                            : 8e-3;
    for (std::int64_t row = 0; row < actual.dim(0); ++row) {
      for (std::int64_t col = 0; col < actual.dim(1); ++col) {
        float a = 0, b = 0;
        convert(actual.dtype(), actual.rows(row, 1).columns(col, 1).data(), DType::kF32, &a, 1);
        convert(expected.dtype(), expected.rows(row, 1).columns(col, 1).data(), DType::kF32, &b, 1);
        ASSERT_NEAR(a, b, rounding * std::abs(b) + 6e-6 * std::sqrt(sums) + 1e-6) << row << ", " << col;
      }
    }
  }

  std::mt19937 random_{5};
  std::unique_ptr<Backend> reference_ = make_backend({.device = "cpu", .cpu_isa = "reference"});
};

TEST_P(SimdOpsTest, LinearEqualsTheReferenceAndItselfInAnyBatch) {
  for (const std::int64_t in : {1, 2, 5, 64, 255, 257, 600}) {
    for (const std::int64_t out : {1, 9, 16, 63, 64, 150}) {
      const Matrix upper(dtype(), out, in, random_);
      const Matrix lower(dtype(), 71, in, random_);
      const std::vector<WeightGroup> parts = {plain(upper), plain(lower)};
      const Matrix bias(DType::kF32, 1, out + 71, random_);
      const auto expected_weights = reference_->make_linear(parts, dtype());
      const auto one = make(1), two = make(2);
      const auto one_weights = one->make_linear(parts, dtype()),
                 two_weights = two->make_linear(parts, dtype());
      for (const std::int64_t tokens : {1, 2, 3, 7, 10, 17, 64}) {
        for (const DType out_dtype : {dtype(), DType::kF32}) {
          const Matrix x(dtype(), tokens, in, random_);
          Matrix expected(out_dtype, tokens, out + 71, random_), actual(out_dtype, tokens, out + 71, random_);
          const Tensor no_bias;
          const Tensor& added = tokens % 2 == 0 ? no_bias : bias.vector();
          ops::linear(*reference_, expected.tensor(), x.tensor(), *expected_weights, added);
          ops::linear(*one, actual.tensor(), x.tensor(), *one_weights, added);
          expect_near(actual.tensor(), expected.tensor(), static_cast<double>(in));
          Matrix alone(out_dtype, tokens, out + 71, random_);
          for (std::int64_t t = 0; t < tokens; ++t) {
            ops::linear(*two, alone.tensor().rows(t, 1), x.tensor().rows(t, 1), *two_weights, added);
          }
          ASSERT_EQ(alone.bytes(), actual.bytes()) << in << " to " << out << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(SimdOpsTest, LinearTakesMoreTokensThanOnePassHolds) {
  const Matrix weight(dtype(), 70, 33, random_);
  const Matrix x(dtype(), 1100, 33, random_);
  const std::vector<WeightGroup> parts = {plain(weight)};
  Matrix expected(dtype(), 1100, 70, random_), actual(dtype(), 1100, 70, random_);
  const auto backend = make(2);
  ops::linear(*reference_, expected.tensor(), x.tensor(), *reference_->make_linear(parts, dtype()), {});
  ops::linear(*backend, actual.tensor(), x.tensor(), *backend->make_linear(parts, dtype()), {});
  expect_near(actual.tensor(), expected.tensor(), 33);
}

TEST_P(SimdOpsTest, EmbeddingReadsRowsOutOfThePackedForm) {
  for (const std::int64_t width : {1, 5, 64, 131}) {
    const Matrix table(dtype(), 150, width, random_);
    const std::vector<WeightGroup> parts = {plain(table)};
    std::vector<std::int32_t> ids = {10, 73, 9, 74, 159, 160, 12, 138, 139, 150};
    const auto n = static_cast<std::int64_t>(ids.size());
    Matrix expected(DType::kF32, n, width, random_), actual(DType::kF32, n, width, random_);
    const auto backend = make(2);
    ops::embedding(*reference_, expected.tensor(), *reference_->make_linear(parts, dtype()), ints(ids), 10,
                   0.3F);
    ops::embedding(*backend, actual.tensor(), *backend->make_linear(parts, dtype()), ints(ids), 10, 0.3F);
    EXPECT_EQ(actual.bytes(), expected.bytes());
  }
}

TEST_P(SimdOpsTest, ElementWiseOpsEqualTheReference) {
  const auto backend = make(2);
  for (const std::int64_t n : {1, 13, 64, 1030}) {
    for (const std::int64_t tokens : {1, 7, 64}) {
      const Matrix weight(DType::kF32, 1, n, random_), bias(DType::kF32, 1, n, random_);
      const Matrix x(dtype(), tokens, n, random_);
      Matrix residual(DType::kF32, tokens, n, random_), same(DType::kF32, tokens, n, random_);
      same.set_bytes(residual.bytes());
      Matrix expected(dtype(), tokens, n, random_), actual(dtype(), tokens, n, random_);
      for (const Tensor& shift : {Tensor(), bias.vector()}) {
        const NormParams params = {.weight = weight.vector(), .bias = shift, .eps = 1e-5F, .sum_scale = 0.3F};
        ops::add_norm(*reference_, expected.tensor(), residual.tensor(), x.tensor(), 0.25F, params);
        ops::add_norm(*backend, actual.tensor(), same.tensor(), x.tensor(), 0.25F, params);
        EXPECT_EQ(residual.bytes(), same.bytes());
        expect_near(actual.tensor(), expected.tensor());
        ops::norm(*reference_, expected.tensor(), residual.tensor(), params);
        ops::norm(*backend, actual.tensor(), residual.tensor(), params);
        expect_near(actual.tensor(), expected.tensor());
      }
      const NormParams of_x = {.weight = weight.vector(), .bias = {}, .eps = 1e-5F};
      ops::norm(*reference_, expected.tensor(), x.tensor(), of_x);
      ops::norm(*backend, actual.tensor(), x.tensor(), of_x);
      expect_near(actual.tensor(), expected.tensor());
      ops::norm(*reference_, expected.tensor(), x.tensor(), {});
      ops::norm(*backend, actual.tensor(), x.tensor(), {});
      EXPECT_EQ(actual.bytes(), expected.bytes());
      ops::add_norm(*reference_, expected.tensor(), residual.tensor(), x.tensor(), 0.25F, {});
      ops::add_norm(*backend, actual.tensor(), same.tensor(), x.tensor(), 0.25F, {});
      EXPECT_EQ(actual.bytes(), expected.bytes());
      EXPECT_EQ(residual.bytes(), same.bytes());
      for (const Activation activation :
           {Activation::kSilu, Activation::kGelu, Activation::kRelu2, Activation::kSwigluOai}) {
        ops::activate(*reference_, expected.tensor(), x.tensor(), activation);
        ops::activate(*backend, actual.tensor(), x.tensor(), activation);
        expect_near(actual.tensor(), expected.tensor());
        const float scale = activation == Activation::kRelu2 ? 4.0F : 20.0F;  // squares stay below 65504
        const Matrix gate_up(dtype(), tokens, 2 * n, random_, scale);
        ops::activate_gate(*reference_, expected.tensor(), gate_up.tensor(), activation);
        ops::activate_gate(*backend, actual.tensor(), gate_up.tensor(), activation);
        expect_near(actual.tensor(), expected.tensor(), 400);
      }
      for (const float cap : {0.5F, 30.0F}) {
        Matrix capped(DType::kF32, tokens, n, random_, 5.0F), also(DType::kF32, tokens, n, random_);
        also.set_bytes(capped.bytes());
        ops::cap(*reference_, capped.tensor(), cap);
        ops::cap(*backend, also.tensor(), cap);
        expect_near(also.tensor(), capped.tensor());
      }
    }
  }
}

constexpr PagedShape kShapes[] = {{4, 2, 32, 8},    {6, 1, 64, 16},   {3, 3, 80, 32},
                                  {16, 8, 128, 16}, {2, 1, 256, 64},  {71, 1, 64, 256},
                                  {4, 2, 6, 8},     {8, 2, 128, 128}, {4, 1, 512, 16}};

constexpr int kWindows[] = {1, 17, 64, 100};

TEST_P(SimdOpsTest, AttentionEqualsTheReferenceAndItselfTokenByToken) {
  for (std::size_t turn = 0; turn < 3 * 2 * std::size(kShapes); ++turn) {
    const std::size_t round = turn % 3, pair = turn / 3;
    const PagedShape& shape = kShapes[pair / 2];
    const int window = pair % 2 == 0 ? 0 : kWindows[pair / 2 % std::size(kWindows)];
    const std::vector<PagedBatch::Span> spans = {{0, 1},   {62, 3}, {100, 65}, {0, 130},
                                                 {191, 1}, {64, 1}, {63, 1}};
    PagedBatch paged(shape, spans, dtype(), random_);
    if (window > 0) paged.drop_blocks_before(window);
    // Every case has each kind of cache in turn.
    constexpr CacheCode kCodes[] = {CacheCode::kNone, CacheCode::kE4m3, CacheCode::kE5m2};
    const CacheCode code = kCodes[(pair + round) % 3];
    std::optional<CodedCache> coded;
    if (code != CacheCode::kNone) paged.cache = coded.emplace(paged.cache, code).layer;
    AttentionShape planned = paged.attention_shape();
    planned.code = code;
    const std::int64_t width = std::int64_t{shape.heads} * shape.dim;
    const Matrix slopes(DType::kF32, 1, shape.heads, random_);
    const Matrix q(dtype(), paged.batch.num_tokens, width, random_);
    Matrix expected(dtype(), paged.batch.num_tokens, width, random_),
        actual(dtype(), paged.batch.num_tokens, width, random_);
    AttentionScores scores;
    scores.scale = 1.0F / std::sqrt(static_cast<float>(shape.dim));
    scores.window = window;
    if (window % 2 == 1) scores.alibi_slopes = slopes.vector();
    if (pair % 3 == 1) scores.cap = 0.7F;
    if (pair % 5 < 2) scores.sinks = slopes.vector();
    const auto one = make(1), two = make(2);
    reference_->attention(expected.tensor(), q.tensor(), paged.cache, paged.batch, scores);
    paged.batch.plan = ops::plan_attention(*two, paged.batch, planned);
    two->attention(actual.tensor(), q.tensor(), paged.cache, paged.batch, scores);
    expect_near(actual.tensor(), expected.tensor());
    Matrix alone(dtype(), paged.batch.num_tokens, width, random_);
    for (int s = 0; s < paged.batch.num_sequences; ++s) {
      const std::int64_t begin = paged.batch.query_starts.data_as<std::int32_t>()[s];
      const int count = spans[static_cast<std::size_t>(s)].num_tokens;
      for (int i = 0; i < count; ++i) {
        std::vector<std::int32_t> starts = {0, 1},
                                  length = {spans[static_cast<std::size_t>(s)].context_before + i + 1},
                                  row = {s}, unused = {0};
        AttentionBatch step = paged.batch;
        step.num_sequences = step.num_tokens = step.max_query_len = 1;
        step.max_seq_len = length[0];
        step.query_starts = ints(starts);
        step.seq_lens = ints(length);
        step.table_rows = ints(row);
        step.positions = step.slot_mapping = ints(unused);
        step.plan = ops::plan_attention(*one, step, planned);
        one->attention(alone.tensor().rows(begin + i, 1), q.tensor().rows(begin + i, 1), paged.cache, step,
                       scores);
      }
    }
    ASSERT_EQ(alone.bytes(), actual.bytes())
        << "head dim " << shape.dim << ", block size " << shape.block_size << ", window " << window
        << ", cache " << static_cast<int>(code);
  }
}

TEST_P(SimdOpsTest, RotateAndStoreEqualsTheReference) {
  for (const PagedShape& shape : kShapes) {
    for (const auto& [with_norm, norm_after] : {std::pair{false, false}, {true, false}, {true, true}}) {
      const PagedBatch paged(shape, {{0, 40}, {5, 1}, {30, 7}}, dtype(), random_);
      Matrix memory(dtype(), paged.memory().tensor().dim(0), shape.dim, random_);
      memory.set_bytes(paged.memory().bytes());
      const std::int64_t width = std::int64_t{shape.heads + 2 * shape.kv_heads} * shape.dim;
      Matrix expected(dtype(), paged.batch.num_tokens, width, random_),
          actual(dtype(), paged.batch.num_tokens, width, random_);
      actual.set_bytes(expected.bytes());
      const Matrix norm(DType::kF32, 1, shape.dim, random_);
      const Matrix cos_sin(DType::kF32, 64, with_norm ? shape.dim : shape.dim / 2 / 2 * 2, random_);
      AttentionInput input;
      if (with_norm) input.q_norm = input.k_norm = norm.vector();
      if (norm_after) input.v_norm = norm.vector();
      input.norm_eps = 1e-6F;
      input.norm_after_rotary = norm_after;
      const Matrix q_scale(DType::kF32, 1, 64, random_);
      if (norm_after == with_norm) input.q_scale = q_scale.vector();
      input.cos_sin = cos_sin.tensor();
      input.num_heads = shape.heads;
      input.num_kv_heads = shape.kv_heads;
      input.head_dim = shape.dim;
      input.qkv = expected.tensor();
      reference_->rotate_and_store(input, paged.cache, paged.batch);
      input.qkv = actual.tensor();
      make(2)->rotate_and_store(input, paged.view(memory), paged.batch);
      expect_near(actual.tensor(), expected.tensor());
      for (int t = 0; t < paged.batch.num_tokens; ++t) {
        const std::int32_t slot = paged.batch.slot_mapping.data_as<std::int32_t>()[t];
        const KvCacheLayer other = paged.view(memory);
        for (int head = 0; head < shape.kv_heads; ++head) {
          const auto row_of = [&](const Tensor& half) {
            const std::int64_t offset = slot / shape.block_size * half.stride(0) + head * half.stride(1) +
                                        slot % shape.block_size * half.stride(2);
            return Tensor(half.data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(dtype()),
                          dtype(), {1, shape.dim});
          };
          expect_near(row_of(other.keys), row_of(paged.cache.keys));
          expect_near(row_of(other.values), row_of(paged.cache.values));
        }
      }
    }
  }
}

// Values go to the cache as they are, so their codes are the same; keys are computed, and may be a step
// apart.
TEST_P(SimdOpsTest, RotateAndStoreKeepsTheReferencesCodes) {
  for (const CacheCode code : {CacheCode::kE4m3, CacheCode::kE5m2}) {
    for (const bool given : {false, true}) {
      for (const PagedShape& shape : kShapes) {
        const PagedBatch paged(shape, {{0, 40}, {5, 1}, {30, 7}}, dtype(), random_);
        const CodedCache expected(paged.cache, code);
        CodedCache actual(paged.cache, code);
        const Matrix qkv(dtype(), paged.batch.num_tokens,
                         std::int64_t{shape.heads + 2 * shape.kv_heads} * shape.dim, random_);
        Matrix same(dtype(), paged.batch.num_tokens, qkv.tensor().dim(1), random_);
        same.set_bytes(qkv.bytes());
        const Matrix cos_sin(DType::kF32, 64, shape.dim / 2 * 2, random_);
        std::vector<float> scales(static_cast<std::size_t>(shape.kv_heads), 0.01F);
        AttentionInput input;
        input.cos_sin = cos_sin.tensor();
        input.qkv = qkv.tensor();
        input.num_heads = shape.heads;
        input.num_kv_heads = shape.kv_heads;
        input.head_dim = shape.dim;
        if (given) input.k_scales = input.v_scales = Tensor(scales.data(), DType::kF32, {shape.kv_heads});
        reference_->rotate_and_store(input, expected.layer, paged.batch);
        input.qkv = same.tensor();
        make(2)->rotate_and_store(input, actual.layer, paged.batch);
        for (int t = 0; t < paged.batch.num_tokens; ++t) {
          const std::int32_t slot = paged.batch.slot_mapping.data_as<std::int32_t>()[t];
          const std::int64_t block = slot / shape.block_size, offset = slot % shape.block_size;
          for (int head = 0; head < shape.kv_heads; ++head) {
            const KvCacheLayer &a = actual.layer, &e = expected.layer;
            EXPECT_EQ(actual.row(a.values, a.value_scales, block, head, offset),
                      expected.row(e.values, e.value_scales, block, head, offset));
            const float scale = *CodedCache::scale_at(e.key_scales, block, head, offset);
            EXPECT_NEAR(*CodedCache::scale_at(a.key_scales, block, head, offset), scale, 1e-5F * scale);
            EXPECT_TRUE(!given || scale == 0.01F);
            const std::vector<float> keys = actual.row(a.keys, a.key_scales, block, head, offset);
            const std::vector<float> others = expected.row(e.keys, e.key_scales, block, head, offset);
            const float step = code == CacheCode::kE4m3 ? 0x1p-3F : 0x1p-2F;
            for (std::size_t i = 0; i < keys.size(); ++i)
              EXPECT_NEAR(keys[i], others[i], step * std::fabs(others[i]) + 0.002F * scale);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SimdOpsTest,
                         ::testing::Combine(::testing::ValuesIn(simd_names()),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SimdOpsTest);

}  // namespace
}  // namespace quire
