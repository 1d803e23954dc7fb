// Biases, masks and penalties on the GPU, against their definition in doubles.
#include <gtest/gtest.h>

#include "backends/cuda/kernels/sampling.h"
#include "cuda/device_memory.h"
#include "parity/adjustment_fixtures.h"

namespace quire::cuda {
namespace {

using quire::testing::AdjustArrays;
using quire::testing::AdjustRow;
using testing::DeviceTensor;

template <typename T>
Tensor tensor_of(std::vector<T>& values, DType dtype) {
  return Tensor(values.data(), dtype, {static_cast<std::int64_t>(values.size())});
}

class CudaLogitsAdjustmentTest : public testing::DeviceTest {
 protected:
  void adjust(AdjustArrays& a) const {
    const auto n = static_cast<std::int64_t>(a.rows.size());
    const DeviceTensor rows(tensor_of(a.rows, DType::kI32)), seats(tensor_of(a.seats, DType::kI32)),
        uses(tensor_of(a.uses, DType::kI32)), repetition(tensor_of(a.repetition, DType::kF32)),
        frequency(tensor_of(a.frequency, DType::kF32)), presence(tensor_of(a.presence, DType::kF32)),
        bias_starts(tensor_of(a.bias_starts, DType::kI32)), bias_ids(tensor_of(a.bias_ids, DType::kI32)),
        bias_values(tensor_of(a.bias_values, DType::kF32)),
        mask_starts(tensor_of(a.mask_starts, DType::kI32)), masks(tensor_of(a.masks, DType::kI32)),
        last(tensor_of(a.last, DType::kI32)), bitmask_rows(tensor_of(a.bitmask_rows, DType::kI32)),
        bitmasks(tensor_of(a.bitmasks, DType::kI32));
    const Tensor host_states(a.states.data(), DType::kI16, {n, a.stride});
    const Tensor host_logits(a.logits.data(), DType::kF32, {2 * n, a.vocab});
    const DeviceTensor states(host_states), logits(host_logits);
    adjust_logits(context_, logits.tensor(), last.tensor(),
                  {.num_rows = static_cast<int>(n),
                   .rows = rows.tensor(),
                   .seats = seats.tensor(),
                   .state_uses = uses.tensor(),
                   .repetition = repetition.tensor(),
                   .frequency = frequency.tensor(),
                   .presence = presence.tensor(),
                   .bias_starts = bias_starts.tensor(),
                   .bias_ids = bias_ids.tensor(),
                   .bias_values = bias_values.tensor(),
                   .mask_starts = mask_starts.tensor(),
                   .masks = masks.tensor(),
                   .token_states = states.tensor(),
                   .bitmask_rows = bitmask_rows.tensor(),
                   .bitmasks = bitmasks.tensor()});
    states.download(host_states);
    logits.download(host_logits);
  }
};

TEST_F(CudaLogitsAdjustmentTest, ChangesLogitsAsDefined) {
  for (const std::size_t vocab : {1, 7, 64, 5003, 8193, 151936}) {
    const auto rows = quire::testing::random_adjust_rows(vocab > 100000 ? 12 : 60, vocab, 3);
    AdjustArrays a(rows);
    adjust(a);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto expected = rows[i].expected();
      for (std::size_t id = 0; id < vocab; ++id) {
        ASSERT_EQ(a.logits[2 * i * vocab + id], rows[i].logits[id]) << "a row that was not named";
        const float actual = a.logits[(2 * i + 1) * vocab + id];
        const bool same = std::isinf(expected[id])
                              ? static_cast<double>(actual) == expected[id]
                              : std::abs(actual - expected[id]) <= 1e-5 * (1 + std::abs(expected[id]));
        ASSERT_TRUE(same) << vocab << " tokens, row " << i << " token " << id << ": " << actual << ", not "
                          << expected[id];
      }
      const auto* states = &a.states[(rows.size() - 1 - i) * static_cast<std::size_t>(a.stride)];
      for (const auto& [id, count] : rows[i].counts_after())
        ASSERT_EQ(states[id] & token_state::kMaxCount, count);
    }
  }
}

TEST_F(CudaLogitsAdjustmentTest, ACountStopsAtItsMost) {
  AdjustRow row{.logits = {1, 2, 3}};
  row.output[1] = token_state::kMaxCount;
  row.prompt = {1};
  row.last = 1;
  row.use = StateUse::kCountLastAndRead;
  row.frequency = 1e-3F;
  AdjustArrays a({row});
  adjust(a);
  EXPECT_EQ(a.states[1], token_state::kInPrompt | token_state::kMaxCount);
  EXPECT_NEAR(a.logits[4], 2 - 1e-3F * token_state::kMaxCount, 1e-4);
}

TEST_F(CudaLogitsAdjustmentTest, AMaskedNotANumberDoesNoHarm) {
  AdjustRow row{.logits = {1, NAN, 3}};
  row.masks[1] = -1;
  AdjustArrays a({row});
  adjust(a);
  EXPECT_EQ(a.logits[4], -INFINITY);
}

TEST_F(CudaLogitsAdjustmentTest, SettingTokenStatesLeavesTheOthers) {
  std::vector<std::uint16_t> states(6, 7);
  std::vector<std::int32_t> entries = {4, 0xC001, 0, 0};
  const DeviceTensor device_states(tensor_of(states, DType::kI16));
  const DeviceTensor device_entries(Tensor(entries.data(), DType::kI32, {2, 2}));
  set_token_states(context_, device_states.tensor(), device_entries.tensor());
  device_states.download(tensor_of(states, DType::kI16));
  EXPECT_EQ(states, (std::vector<std::uint16_t>{0, 7, 7, 7, 0xC001, 7}));
}

}  // namespace
}  // namespace quire::cuda
