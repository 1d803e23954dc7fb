// The CUDA backend's causal convolution against the CPU reference, and bitwise against itself however a
// sequence is cut.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/cpu/reference/reference_backend.h"
#include "backends/cuda/kernels/elementwise.h"
#include "cuda/device_memory.h"
#include "parity/state_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::Matrix;
using quire::testing::Slots;
using quire::testing::StateSpan;
using quire::testing::StateSpans;
using testing::DeviceTensor;

// A batch's tensors on the device.
class DeviceSpans {
 public:
  explicit DeviceSpans(const StateBatch& host)
      : starts_(host.query_starts), from_(host.from), to_(host.to), batch_(host) {
    batch_.query_starts = starts_.tensor();
    batch_.from = from_.tensor();
    batch_.to = to_.tensor();
  }
  const StateBatch& batch() const { return batch_; }

 private:
  DeviceTensor starts_, from_, to_;
  StateBatch batch_;
};

// The slots of `host` where its memory's copy lies.
Tensor slots_at(const DeviceTensor& memory, const Slots& host) {
  const Tensor& t = host.tensor();
  return Tensor(memory.tensor().data(), DType::kF32, {t.dim(0), t.dim(1), t.dim(2)}, DeviceKind::kCuda)
      .with_strides({t.stride(0), t.stride(1), 1});
}

class CudaCausalConvTest : public testing::DeviceTest, public ::testing::WithParamInterface<DType> {
 protected:
  double tolerance() const {
    return GetParam() == DType::kF32 ? 5e-6 : GetParam() == DType::kF16 ? 1e-3 : 8e-3;
  }

  // Channels begin `offset` columns into rows that are as much wider.
  void expect_reference(const std::vector<StateSpan>& spans_of, std::int64_t num_slots, std::int64_t channels,
                        std::int64_t width, std::int64_t offset, bool plain) {
    const StateSpans spans(spans_of);
    const DeviceSpans device(spans.batch());
    const std::int64_t tokens = spans.batch().num_tokens;
    const Matrix x(GetParam(), tokens, channels + offset, random_);
    Matrix out(GetParam(), tokens, channels + offset, random_);
    const Matrix weight(DType::kF32, width, channels, random_), bias(DType::kF32, 1, channels, random_);
    const Slots state(num_slots, width - 1, channels, random_, offset);
    const DeviceTensor x_there(x.tensor()), out_there(out.tensor()), weight_there(weight.tensor());
    const DeviceTensor bias_there(bias.vector()), memory_there(state.memory().tensor());
    const Activation activation = plain ? Activation::kIdentity : Activation::kSilu;
    ReferenceBackend().causal_conv(
        out.tensor().columns(offset, channels), x.tensor().columns(offset, channels),
        {weight.tensor(), plain ? Tensor() : bias.vector(), activation}, state.tensor(), spans.batch());
    causal_conv(context_, out_there.tensor().columns(offset, channels),
                x_there.tensor().columns(offset, channels),
                {weight_there.tensor(), plain ? Tensor() : bias_there.tensor(), activation},
                slots_at(memory_there, state), device.batch());
    const std::vector<double> expected = out.values(), kept = state.memory().values();
    out_there.download(out.tensor());
    memory_there.download(state.memory().tensor());
    const std::vector<double> actual = out.values();
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_NEAR(actual[i], expected[i], tolerance() * (std::abs(expected[i]) + 1)) << i;
    ASSERT_EQ(state.memory().values(), kept);
  }

  std::mt19937 random_{11};
};

TEST_P(CudaCausalConvTest, IsThatOfTheReference) {
  const std::vector<StateSpan> mixed = {{1, 2, 2},  {5, -1, 0}, {2, 4, 1},  {31, 3, 3},
                                        {3, 5, -1}, {1, -1, 6}, {70, 7, 8}, {0, 9, 10}};
  std::vector<StateSpan> decoding;
  for (std::int32_t s = 0; s < 300; ++s) decoding.push_back({1, s, s % 7 == 3 ? -1 : s});
  for (const std::int64_t channels : {1, 13, 64, 200, 1024}) {
    for (const std::int64_t width : {2, 3, 4}) {
      for (const std::int64_t offset : {0, 3, 8}) {
        expect_reference(mixed, 12, channels, width, offset, false);
        expect_reference(mixed, 12, channels, width, offset, true);
      }
    }
    expect_reference(decoding, 300, channels, 3, 8, true);
  }
}

TEST_P(CudaCausalConvTest, IsBitwiseTheSameHoweverASequenceIsCut) {
  constexpr std::int64_t kTokens = 100, kChannels = 72, kWidth = 4;
  const Matrix x(GetParam(), kTokens, kChannels, random_), weight(DType::kF32, kWidth, kChannels, random_);
  const DeviceTensor x_there(x.tensor()), weight_there(weight.tensor());
  const auto run = [&](std::int32_t piece) {
    Matrix out(GetParam(), kTokens, kChannels, random_);
    const DeviceTensor out_there(out.tensor());
    std::mt19937 equal(1);
    const Slots state(3, kWidth - 1, kChannels, equal, 0);
    const DeviceTensor memory_there(state.memory().tensor());
    for (std::int32_t t = 0; t < kTokens; t += piece) {
      const std::int32_t tokens = std::min(piece, static_cast<std::int32_t>(kTokens) - t);
      const StateSpans spans({{tokens, t == 0 ? -1 : 1, 1}});
      const DeviceSpans device(spans.batch());
      causal_conv(context_, out_there.tensor().rows(t, tokens), x_there.tensor().rows(t, tokens),
                  {weight_there.tensor(), {}, Activation::kSilu}, slots_at(memory_there, state),
                  device.batch());
    }
    out_there.download(out.tensor());
    memory_there.download(state.memory().tensor());
    std::vector<std::byte> bytes = out.bytes();
    bytes.insert(bytes.end(), state.memory().bytes().begin(), state.memory().bytes().end());
    return bytes;
  };
  const std::vector<std::byte> whole = run(kTokens);
  for (const std::int32_t piece : {1, 2, 7, 33, 64}) EXPECT_EQ(run(piece), whole) << piece;
}

INSTANTIATE_TEST_SUITE_P(Types, CudaCausalConvTest, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire::cuda
