// Biases, masks and penalties against their definition in doubles.
#include <gtest/gtest.h>

#include "backends/isa.h"
#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/adjustment_fixtures.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using testing::AdjustArrays;
using testing::AdjustRow;
using testing::tensor_of;

class LogitsAdjustmentTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void adjust(AdjustArrays& a) const {
    const std::int64_t n = std::ssize(a.rows);
    const LogitsAdjustment adjustment{
        .num_rows = static_cast<int>(n),
        .rows = tensor_of(a.rows, DType::kI32),
        .seats = tensor_of(a.seats, DType::kI32),
        .state_uses = tensor_of(a.uses, DType::kI32),
        .repetition = tensor_of(a.repetition, DType::kF32),
        .frequency = tensor_of(a.frequency, DType::kF32),
        .presence = tensor_of(a.presence, DType::kF32),
        .bias_starts = tensor_of(a.bias_starts, DType::kI32),
        .bias_ids = Tensor(a.bias_ids.data(), DType::kI32, {a.bias_starts.back()}),
        .bias_values = Tensor(a.bias_values.data(), DType::kF32, {a.bias_starts.back()}),
        .mask_starts = tensor_of(a.mask_starts, DType::kI32),
        .masks = Tensor(a.masks.data(), DType::kI32, {a.mask_starts.back(), 2}),
        .token_states = Tensor(a.states.data(), DType::kI16, {n, a.stride}),
        .bitmask_rows = tensor_of(a.bitmask_rows, DType::kI32),
        .bitmasks = Tensor(a.bitmasks.data(), DType::kI32, {a.num_bitmasks(), a.bitmask_words()})};
    ops::adjust_logits(*backend_, Tensor(a.logits.data(), DType::kF32, {2 * n, a.vocab}),
                       tensor_of(a.last, DType::kI32), adjustment);
  }

  void expect_as_defined(const std::vector<AdjustRow>& rows) const {
    AdjustArrays a(rows);
    adjust(a);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto expected = rows[i].expected();
      for (std::size_t id = 0; id < expected.size(); ++id) {
        const std::size_t row = 2 * i * expected.size();
        ASSERT_EQ(a.logits[row + id], rows[i].logits[id]) << "a row that was not named";
        const float actual = a.logits[row + expected.size() + id];
        if (std::isinf(expected[id])) {
          ASSERT_EQ(actual, expected[id]) << "row " << i << " token " << id;
        } else {
          ASSERT_NEAR(actual, expected[id], 1e-5 * (1 + std::abs(expected[id]))) << "row " << i << " " << id;
        }
      }
      const auto counts = rows[i].counts_after();
      const auto* states = &a.states[(rows.size() - 1 - i) * static_cast<std::size_t>(a.stride)];
      for (const auto& [id, count] : counts) ASSERT_EQ(states[id] & token_state::kMaxCount, count);
    }
  }

  std::unique_ptr<Backend> backend_ =
      make_backend({.device = "cpu", .cpu_isa = std::string(to_string(GetParam()))});
};

TEST_P(LogitsAdjustmentTest, ChangesLogitsAsDefined) {
  for (const std::size_t vocab : {1, 7, 64, 5003, 40000}) {
    SCOPED_TRACE(vocab);
    expect_as_defined(testing::random_adjust_rows(vocab > 10000 ? 6 : 60, vocab, 1));
  }
}

TEST_P(LogitsAdjustmentTest, ACountStopsAtItsMost) {
  AdjustRow row{.logits = {1, 2, 3}};
  row.output[1] = token_state::kMaxCount;
  row.prompt = {1};
  row.last = 1;
  row.use = StateUse::kCountLastAndRead;
  row.frequency = 1e-3F;
  AdjustArrays a({row});
  adjust(a);
  EXPECT_EQ(a.states[1], token_state::kInPrompt | token_state::kMaxCount);
  EXPECT_FLOAT_EQ(a.logits[4], 2 - 1e-3F * token_state::kMaxCount);
}

TEST_P(LogitsAdjustmentTest, AMaskedNotANumberDoesNoHarm) {
  AdjustRow row{.logits = {1, NAN, 3}};
  row.masks[1] = -1;
  AdjustArrays a({row});
  adjust(a);
  EXPECT_EQ(a.logits[4], -INFINITY);
}

TEST_P(LogitsAdjustmentTest, SettingTokenStatesLeavesTheOthers) {
  std::vector<std::uint16_t> states(6, 7);
  std::vector<std::int32_t> entries = {4, 0xC001, 0, 0};
  ops::set_token_states(*backend_, tensor_of(states, DType::kI16),
                        Tensor(entries.data(), DType::kI32, {2, 2}));
  EXPECT_EQ(states, (std::vector<std::uint16_t>{0, 7, 7, 7, 0xC001, 7}));
}

INSTANTIATE_TEST_SUITE_P(Isas, LogitsAdjustmentTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire
