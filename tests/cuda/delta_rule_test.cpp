// The CUDA backend's ops of Gated DeltaNet against their formulas in double precision, and bitwise against
// themselves however a sequence is cut.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <optional>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/elementwise.h"
#include "cuda/device_memory.h"
#include "parity/delta_rule_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::DeltaCase;
using quire::testing::DeltaNetCase;
using quire::testing::DeltaShape;
using quire::testing::DeltaSpan;
using quire::testing::Matrix;
using testing::DeviceTensor;

// The kernels that a layer goes through one by one.
class Kernels final : public ReferenceBackend {
 public:
  explicit Kernels(const LaunchContext& context) : context_(context) {}

  void causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                   const StateBatch& batch) override {
    cuda::causal_conv(context_, out, x, params, state, batch);
  }
  void gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                        const StateBatch& batch) override {
    cuda::gated_delta_rule(context_, out, input, state, batch);
  }
  void gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params) override {
    cuda::gated_norm(context_, out, x, gate, params);
  }

 private:
  LaunchContext context_;
};

// A case's matrices on the device.
class DeviceNet {
 public:
  explicit DeviceNet(DeltaNetCase& test)
      : test_(test), host_(test.batch()), starts_(host_.query_starts), from_(host_.from), to_(host_.to) {}

  Tensor at(const Matrix& matrix) {
    std::unique_ptr<DeviceTensor>& copy = copies_[&matrix];
    if (copy == nullptr) copy = std::make_unique<DeviceTensor>(matrix.tensor());
    return copy->tensor();
  }
  DeltaNet net() {
    return test_.net([&](const Matrix& matrix) { return at(matrix); });
  }
  StateBatch batch() const {
    return {host_.num_sequences, host_.num_tokens, 1, starts_.tensor(), from_.tensor(), to_.tensor()};
  }
  std::vector<std::byte> download(const Matrix& matrix) {
    std::mt19937 any;
    const Tensor like = matrix.tensor();
    const Matrix result(like.dtype(), like.dim(0), like.dim(1), any);
    at(matrix);
    copies_[&matrix]->download(result.tensor());
    return result.bytes();
  }

 private:
  DeltaNetCase& test_;
  StateBatch host_;
  DeviceTensor starts_, from_, to_;
  std::map<const Matrix*, std::unique_ptr<DeviceTensor>> copies_;
};

class CudaDeltaRuleTest : public testing::DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  // One call on tokens from `first` on, whose spans are those of `batch`: with a workspace, long ones in
  // chunks.
  void run(const DeltaCase& test, const Tensor& out, const Tensor& rows, const Tensor& slots,
           const StateBatch& batch, const Tensor& workspace = {}) {
    const DeviceTensor starts(batch.query_starts), from(batch.from), to(batch.to);
    const DeviceTensor a_log(test.a_log.vector()), dt_bias(test.dt_bias.vector());
    std::optional<DeviceTensor> spans;
    StateBatch there = batch;
    there.query_starts = starts.tensor();
    there.from = from.tensor();
    there.to = to.tensor();
    if (batch.long_spans.defined()) there.long_spans = spans.emplace(batch.long_spans).tensor();
    DeltaRuleInput input = test.input(rows, a_log.tensor(), dt_bias.tensor());
    input.workspace = workspace;
    gated_delta_rule(context_, out, input, test.state(slots), there);
    check(cudaDeviceSynchronize(), "the rule under test");
  }

  std::mt19937 random_{11};
};

// Vectors and none, whole strips and odd ones, each number of a thread's rows.
const DeltaShape kDeltaShapes[] = {{2, 4, 16, 16}, {1, 3, 5, 7},     {3, 3, 33, 65},
                                   {1, 2, 80, 36}, {2, 4, 128, 128}, {1, 1, 256, 33}};

TEST_P(CudaDeltaRuleTest, EqualsTheRecurrenceFromSlotToSlot) {
  for (const DeltaShape& shape : kDeltaShapes) {
    for (const std::int64_t padding : {0, 5}) {
      DeltaCase test(shape, {{3, -1, 2}, {1, 0, 4}, {41, 1, 1}, {2, 0, 5}, {2, 3, -1}, {0, 3, 6}}, 8,
                     GetParam(), random_, padding);
      const DeltaCase::Expected expected = test.expected();
      const Matrix out(DType::kF32, test.tokens, shape.values(), random_);
      const std::vector<double> before = out.values();
      const DeviceTensor out_there(out.tensor()), rows(test.rows.tensor()), slots(test.slots.tensor());
      run(test, out_there.tensor(), rows.tensor(), slots.tensor(), test.batch());
      out_there.download(out.tensor());
      slots.download(test.slots.tensor());
      for (std::int64_t t = 0; t < test.tokens; ++t) {
        for (std::int64_t i = 0; i < shape.values(); ++i) {
          const double value = expected.out[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
          const double left = before[static_cast<std::size_t>(t * shape.values() + i)];
          ASSERT_NEAR(out.at(t, i), std::isnan(value) ? left : value, 1e-5) << t << ", " << i;
        }
      }
      for (std::int64_t slot = 0; slot < 8; ++slot) {
        for (std::int64_t i = 0; i < test.slots.tensor().dim(1); ++i)
          ASSERT_NEAR(test.slots.at(slot, i),
                      expected.slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(i)], 1e-5)
              << slot << ", " << i;
      }
    }
  }
}

TEST_P(CudaDeltaRuleTest, IsBitwiseTheSameTokenByToken) {
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaCase test(shape, {{40, -1, 0}, {23, 1, 1}}, 2, GetParam(), random_);
    const Matrix out(DType::kF32, test.tokens, shape.values(), random_);
    const DeviceTensor together(out.tensor()), alone(out.tensor()), rows(test.rows.tensor());
    const DeviceTensor slots(test.slots.tensor()), own(test.slots.tensor());
    run(test, together.tensor(), rows.tensor(), slots.tensor(), test.batch());
    for (int t = 0; t < 63; ++t) {
      const std::int32_t slot = t < 40 ? 0 : 1;
      std::vector<std::int32_t> starts = {0, 1}, source = {t == 0 ? -1 : slot}, target = {slot};
      run(test, alone.tensor().rows(t, 1), rows.tensor().rows(t, 1), own.tensor(),
          {1, 1, 1, quire::testing::ints(starts), quire::testing::ints(source),
           quire::testing::ints(target)});
    }
    together.download(out.tensor());
    const std::vector<std::byte> expected = out.bytes();
    alone.download(out.tensor());
    EXPECT_EQ(out.bytes(), expected);
    slots.download(test.slots.tensor());
    const std::vector<std::byte> kept = test.slots.bytes();
    own.download(test.slots.tensor());
    EXPECT_EQ(test.slots.bytes(), kept);
  }
}

TEST_P(CudaDeltaRuleTest, AStepOfSingleTokensInOneLaunchIsBitwiseThatOfThree) {
  const DeltaShape shapes[] = {{2, 4, 16, 16},   {1, 3, 33, 36},   {2, 2, 128, 128}, {1, 2, 128, 128},
                               {2, 6, 128, 128}, {4, 8, 128, 128}, {1, 1, 64, 256}};
  for (const DeltaShape& shape : shapes) {
    for (const int sequences : {1, 3, 64, 256}) {
      for (const bool in_place : {false, true}) {
        DeltaNetCase test(shape, sequences, in_place, GetParam(), random_);
        DeviceNet together(test), apart(test);
        if (!overlaps_kernels()) GTEST_SKIP() << "this device has no clusters";
        const bool is_wide = shape.values() > 256 * shape.key_heads && sequences < 256;
        ASSERT_NE(delta_step_supports(context_, together.net(), together.batch()), is_wide);
        if (is_wide) continue;
        const Tensor x = together.at(test.rows), out = together.at(test.out);
        const DeltaNet net = together.net();
        delta_step(context_, test.output(out), test.input(x), net, together.batch());
        Kernels(context_).Backend::gated_delta_net(
            test.output(apart.at(test.out)), test.input(apart.at(test.rows)), apart.net(), apart.batch());
        const std::vector<std::byte> actual = together.download(test.out),
                                     expected = apart.download(test.out);
        const std::size_t row = actual.size() / static_cast<std::size_t>(sequences);
        for (int s = 0; s < sequences; ++s) {  // rows of padding mean nothing
          const auto begin = static_cast<std::ptrdiff_t>(row) * s,
                     end = begin + static_cast<std::ptrdiff_t>(row);
          if (test.is_padding(s)) continue;
          ASSERT_TRUE(std::equal(actual.begin() + begin, actual.begin() + end, expected.begin() + begin))
              << shape.value_heads << " heads, row " << s << " of " << sequences;
        }
        ASSERT_NE(actual, test.out.bytes());
        ASSERT_EQ(together.download(test.conv_slots), apart.download(test.conv_slots));
        ASSERT_EQ(together.download(test.slots), apart.download(test.slots));
      }
    }
  }
}

TEST_P(CudaDeltaRuleTest, GatesAndGatedNormsEqualTheReference) {
  ReferenceBackend reference;
  const double tolerance = GetParam() == DType::kF32 ? 3e-6 : GetParam() == DType::kF16 ? 1e-3 : 8e-3;
  const auto expect_near = [&](const Matrix& out, const DeviceTensor& there) {
    const std::vector<double> expected = out.values();
    there.download(out.tensor());
    const std::vector<double> actual = out.values();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], tolerance * (std::abs(expected[i]) + 1)) << i;
  };
  for (const std::int64_t n : {1, 7, 64, 128}) {
    constexpr std::int64_t kHeads = 6;
    const Matrix x(GetParam(), 5, kHeads * n, random_), wide(DType::kF32, 5, kHeads * n, random_);
    const Matrix gates(GetParam(), 5, kHeads * n + 3, random_, 3.0F), weight(DType::kF32, 1, n, random_);
    const DeviceTensor x_there(x.tensor()), wide_there(wide.tensor()), gates_there(gates.tensor());
    const DeviceTensor weight_there(weight.vector());
    for (const std::int64_t width : {std::int64_t{1}, kHeads * n}) {
      for (const bool add : {false, true}) {
        const Matrix out(GetParam(), 5, kHeads * n, random_);
        const DeviceTensor there(out.tensor());
        reference.sigmoid_gate(out.tensor(), x.tensor(), gates.tensor().columns(2, width), add);
        sigmoid_gate(context_, there.tensor(), x_there.tensor(), gates_there.tensor().columns(2, width), add);
        expect_near(out, there);
      }
    }
    const Matrix out(GetParam(), 5, kHeads * n, random_);
    const DeviceTensor there(out.tensor());
    reference.gated_norm(out.tensor(), wide.tensor(), gates.tensor().columns(1, kHeads * n),
                         {weight.vector(), {}, 1e-5F});
    gated_norm(context_, there.tensor(), wide_there.tensor(), gates_there.tensor().columns(1, kHeads * n),
               {weight_there.tensor(), {}, 1e-5F});
    expect_near(out, there);
  }
}

// Long spans in chunks, of 16-bit activations. Every operand of a product is within 2^-12 of itself, and the
// sums are float32; the norm of an error of some 4e-4 of the norm of all is what comes of that.
class CudaDeltaChunksTest : public CudaDeltaRuleTest {
 protected:
  static constexpr double kTolerance = 1e-3;

  // Full of NaN.
  DeviceTensor workspace(const DeltaShape& shape) {
    const DeltaRuleShape of = {shape.key_heads, shape.value_heads, shape.key_dim, shape.value_dim};
    bytes_.assign(delta_rule_workspace_bytes(context_, of, GetParam()), 0xFF);
    return DeviceTensor(Tensor(bytes_.data(), DType::kU8, {std::ssize(bytes_)}));
  }
  static DeltaCase make(const DeltaShape& shape, std::vector<DeltaSpan> spans, int slots,
                        std::mt19937& random) {
    const std::int64_t row_padding = 16 - 2 * shape.value_heads % 8;  // whole vectors
    return DeltaCase(shape, std::move(spans), slots, GetParam(), random, 5, row_padding);
  }
  struct Result {
    std::vector<std::byte> out, slots;
  };
  // Out's bytes are 0xFF where nothing writes.
  Result compute(DeltaCase& test, const Tensor& memory) {
    const Matrix out(DType::kF32, test.tokens, test.shape.values(), random_);
    const DeviceTensor there(out.tensor()), rows(test.rows.tensor()), slots(test.slots.tensor());
    there.poison();
    run(test, there.tensor(), rows.tensor(), slots.tensor(), test.batch(), memory);
    return {download(out, there), download(test.slots, slots)};
  }
  std::vector<std::byte> download(const Matrix& like, const DeviceTensor& there) {
    Matrix copy(DType::kF32, like.tensor().dim(0), like.tensor().dim(1), random_);
    there.download(copy.tensor());
    return copy.bytes();
  }
  static double relative_error(const std::vector<std::vector<double>>& expected,
                               const std::vector<std::byte>& bytes) {
    double error = 0, norm = 0;
    std::size_t i = 0;
    for (const auto& row : expected) {
      for (const double value : row) {
        float actual = 0;
        std::memcpy(&actual, &bytes[i++ * sizeof(float)], sizeof(float));
        if (std::isnan(value)) {
          EXPECT_TRUE(std::isnan(actual)) << i - 1;
        } else {
          error += (value - actual) * (value - actual);
          norm += value * value;
        }
      }
    }
    return std::sqrt(error / norm);
  }
  void expect_recurrence(DeltaCase& test) {
    const DeltaCase::Expected expected = test.expected();
    const DeviceTensor memory = workspace(test.shape);
    const Result result = compute(test, memory.tensor());
    EXPECT_LT(relative_error(expected.out, result.out), kTolerance);
    EXPECT_LT(relative_error(expected.slots, result.slots), kTolerance);
  }

 private:
  std::vector<std::uint8_t> bytes_;
};

TEST_P(CudaDeltaChunksTest, EqualTheRecurrenceFromSlotToSlot) {
  for (const DeltaShape& shape : {DeltaShape{2, 4, 128, 128}, {1, 3, 128, 64}, {2, 2, 128, 192}}) {
    DeltaCase test = make(shape,
                          {{3, -1, 2},
                           {100, 0, 4, 64},
                           {41, 1, 1, 30},
                           {300, -1, 5},
                           {70, 3, -1, 5},
                           {31, 6, 6, 7},
                           {64, 7, 7, 128},
                           {1, 8, 8, 99},
                           {32, 0, 9, 63}},
                          11, random_);
    expect_recurrence(test);
  }
}

TEST_P(CudaDeltaChunksTest, EqualTheRecurrenceOverMoreChunksThanTheWorkspaceHolds) {
  DeltaCase test = make({1, 2, 128, 64}, {{64 * 70, -1, 0, 32}, {64 * 61, 1, 1, 7}, {50, -1, 2}}, 4, random_);
  expect_recurrence(test);
}

TEST_P(CudaDeltaChunksTest, KeepTheirPrecisionWhateverTheValuesSize) {
  for (const int power : {-40, -10, 10, 40}) {
    if (GetParam() == DType::kF16 && std::abs(power) == 40) continue;
    DeltaCase test = make({1, 2, 128, 64}, {{200, 0, 0}, {90, -1, 1, 9}}, 2, random_);
    const auto scale = [&]<typename T>(const Tensor& columns) {
      for (std::int64_t t = 0; t < columns.dim(0); ++t) {
        T* row = columns.data_as<T>() + t * columns.stride(0);
        for (std::int64_t i = 0; i < columns.dim(1); ++i)
          row[i] = from_float<T>(std::ldexp(to_float(row[i]), power));
      }
    };
    dispatch_float(GetParam(), [&]<typename T>() {
      scale.template operator()<T>(test.rows.tensor().columns(2 * test.shape.keys(), test.shape.values()));
    });
    scale.operator()<float>(test.slots.tensor());
    expect_recurrence(test);
  }
}

TEST_P(CudaDeltaChunksTest, AreBitwiseTheSameWhereStepsEndAtTheirBordersAndInAnyBatch) {
  constexpr int kTokens = 300, kPosition = 20;
  for (const int cut : {kStateChunk - kPosition, 3 * kStateChunk - kPosition}) {
    DeltaCase test =
        make({1, 2, 128, 128}, {{kTokens, 1, 0, kPosition}, {90, 2, 2, 70}, {5, 3, 3}}, 4, random_);
    const DeviceTensor memory = workspace(test.shape);
    const Matrix out(DType::kF32, test.tokens, test.shape.values(), random_);
    const DeviceTensor together(out.tensor()), apart(out.tensor()), rows(test.rows.tensor());
    const DeviceTensor slots(test.slots.tensor()), own(test.slots.tensor());
    run(test, together.tensor(), rows.tensor(), slots.tensor(), test.batch(), memory.tensor());
    const auto step = [&](int first, int count, const DeltaSpan& span) {
      DeltaCase part = make(test.shape, {span}, 1, random_);
      run(test, apart.tensor().rows(first, count), rows.tensor().rows(first, count), own.tensor(),
          part.batch(), memory.tensor());
    };
    step(0, cut, {cut, 1, 0, kPosition});
    step(cut, kTokens - cut, {kTokens - cut, 0, 0, kPosition + cut});
    step(kTokens, 90, {90, 2, 2, 70});
    step(kTokens + 90, 5, {5, 3, 3});
    EXPECT_EQ(download(out, together), download(out, apart)) << cut;
    EXPECT_EQ(download(test.slots, slots), download(test.slots, own)) << cut;
  }
}

TEST_P(CudaDeltaChunksTest, LeaveShortSpansAndThoseWithoutAWorkspaceAsTheyAre) {
  DeltaCase test = make({2, 4, 128, 128}, {{31, 0, 0}, {64, 1, 1}, {1, 2, 2}}, 3, random_);
  const DeviceTensor memory = workspace(test.shape);
  const Result chunks = compute(test, memory.tensor()), plain = compute(test, {});
  const auto row = static_cast<std::ptrdiff_t>(test.shape.values() * 4);
  const auto rows = [&](const Result& of, int first, int count) {
    const auto begin = of.out.begin() + first * row;
    return std::vector<std::byte>(begin, begin + count * row);
  };
  EXPECT_EQ(rows(chunks, 0, 31), rows(plain, 0, 31));
  EXPECT_NE(rows(chunks, 31, 64), rows(plain, 31, 64));
  EXPECT_EQ(rows(chunks, 95, 1), rows(plain, 95, 1));

  std::vector<DeltaSpan> tokens;
  for (int t = 0; t < 64; ++t) tokens.push_back({1, 1, 1, t});
  const Matrix out(DType::kF32, 64, test.shape.values(), random_);
  const DeviceTensor alone(out.tensor()), there(test.rows.tensor()), slots(test.slots.tensor());
  for (int t = 0; t < 64; ++t) {
    DeltaCase part = make(test.shape, {tokens[static_cast<std::size_t>(t)]}, 1, random_);
    run(test, alone.tensor().rows(t, 1), there.tensor().rows(31 + t, 1), slots.tensor(), part.batch(),
        memory.tensor());
  }
  EXPECT_EQ(download(out, alone), rows(plain, 31, 64));
}

TEST_P(CudaDeltaChunksTest, AreNoKernelsForOtherHeads) {
  const auto bytes = [&](int key_dim, int value_dim, DType dtype) {
    return delta_rule_workspace_bytes(context_, {2, 4, key_dim, value_dim}, dtype);
  };
  EXPECT_GT(bytes(128, 128, GetParam()), 0U);
  EXPECT_EQ(bytes(64, 128, GetParam()), 0U);
  EXPECT_EQ(bytes(128, 96, GetParam()), 0U);
  EXPECT_EQ(bytes(128, 128, DType::kF32), 0U);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaDeltaChunksTest, ::testing::Values(DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });
INSTANTIATE_TEST_SUITE_P(DTypes, CudaDeltaRuleTest, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::cuda
