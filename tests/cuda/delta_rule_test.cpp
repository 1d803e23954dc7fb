// The CUDA backend's ops of Gated DeltaNet against their formulas in double precision, and bitwise against
// themselves however a sequence is cut.
#include <gtest/gtest.h>

#include <map>
#include <memory>

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
  // One call on tokens from `first` on, whose spans are those of `batch`.
  void run(const DeltaCase& test, const Tensor& out, const Tensor& rows, const Tensor& slots,
           const StateBatch& batch) {
    const DeviceTensor starts(batch.query_starts), from(batch.from), to(batch.to);
    const DeviceTensor a_log(test.a_log.vector()), dt_bias(test.dt_bias.vector());
    StateBatch there = batch;
    there.query_starts = starts.tensor();
    there.from = from.tensor();
    there.to = to.tensor();
    gated_delta_rule(context_, out, test.input(rows, a_log.tensor(), dt_bias.tensor()), test.state(slots),
                     there);
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
  const DeltaShape shapes[] = {
      {2, 4, 16, 16}, {1, 3, 33, 36}, {2, 2, 128, 128}, {1, 2, 128, 128}, {1, 1, 64, 256}};
  for (const DeltaShape& shape : shapes) {
    for (const int sequences : {1, 3, 64, 256}) {
      for (const bool in_place : {false, true}) {
        DeltaNetCase test(shape, sequences, in_place, GetParam(), random_);
        DeviceNet together(test), apart(test);
        if (!delta_step_supports(together.net(), together.batch()))
          GTEST_SKIP() << "this device has no clusters";
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

INSTANTIATE_TEST_SUITE_P(DTypes, CudaDeltaRuleTest, ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::cuda
