// The ops of Gated DeltaNet, by the kernels of every instruction set this machine has, against their formulas
// in double precision; and bitwise against themselves, however tokens are spread over steps.
#include <gtest/gtest.h>

#include <array>

#include "backends/isa.h"
#include "backends/registry.h"
#include "parity/delta_rule_fixtures.h"

namespace quire {
namespace {

using testing::DeltaCase;
using testing::DeltaNetCase;
using testing::DeltaShape;
using testing::DeltaSpan;
using testing::Matrix;

std::vector<std::string> delta_isas() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_isas()) names.emplace_back(to_string(isa));
  return names;
}

class DeltaRuleTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Backend> make(int threads) const {
    return make_backend({.device = "cpu", .cpu_isa = std::get<0>(GetParam()), .cpu_threads = threads});
  }
  void expect_near(double actual, double expected) const {
    const double relative = dtype() == DType::kF32 ? 2e-6 : dtype() == DType::kF16 ? 1e-3 : 8e-3;
    EXPECT_NEAR(actual, expected, relative * std::abs(expected) + 2e-6);
  }

  std::mt19937 random_{11};
};

// Whole heads of kernels' strips, and odd ones; spans of none, of one token and of many.
const DeltaShape kDeltaShapes[] = {{2, 4, 16, 16}, {1, 3, 5, 7}, {3, 3, 33, 65}, {1, 2, 128, 128}};

TEST_P(DeltaRuleTest, EqualsTheRecurrenceFromSlotToSlot) {
  const auto backend = make(2);
  for (const DeltaShape& shape : kDeltaShapes) {
    // From zeros, from a slot to another, in place, two from one slot, padding, and without a token.
    DeltaCase test(shape, {{3, -1, 2}, {1, 0, 4}, {41, 1, 1}, {2, 0, 5}, {2, 3, -1}, {0, 3, 6}}, 8, dtype(),
                   random_);
    const DeltaCase::Expected expected = test.expected();
    Matrix out(DType::kF32, test.tokens, shape.values(), random_);
    const std::vector<double> before = out.values();
    backend->gated_delta_rule(out.tensor(), test.input(), test.state(test.slots.tensor()), test.batch());
    for (std::int64_t t = 0; t < test.tokens; ++t) {
      for (std::int64_t i = 0; i < shape.values(); ++i) {
        const double value = expected.out[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)];
        if (std::isnan(value)) {
          EXPECT_EQ(out.at(t, i), before[static_cast<std::size_t>(t * shape.values() + i)]) << "padding";
        } else {
          EXPECT_NEAR(out.at(t, i), value, 1e-5);
        }
      }
    }
    for (std::int64_t slot = 0; slot < 8; ++slot) {
      for (std::int64_t i = 0; i < test.slots.tensor().dim(1); ++i)
        EXPECT_NEAR(test.slots.at(slot, i),
                    expected.slots[static_cast<std::size_t>(slot)][static_cast<std::size_t>(i)], 1e-5)
            << slot << ", " << i;
    }
  }
}

TEST_P(DeltaRuleTest, IsBitwiseTheSameTokenByTokenAndInAnyBatch) {
  const auto one = make(1), several = make(3);
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaCase test(shape, {{40, -1, 0}, {23, 1, 1}}, 4, dtype(), random_);
    Matrix together(DType::kF32, test.tokens, shape.values(), random_),
        alone(DType::kF32, test.tokens, shape.values(), random_);
    Matrix slots(DType::kF32, 4, test.slots.tensor().dim(1), random_);
    slots.set_bytes(test.slots.bytes());
    several->gated_delta_rule(together.tensor(), test.input(), test.state(test.slots.tensor()), test.batch());
    // The first sequence in steps of 1, 2, 3, … tokens, by turns in slots 0 and 2 and last in 0; the second
    // after it token by token.
    const auto step = [&](std::int64_t first, int count, std::int32_t from, std::int32_t to) {
      std::vector<std::int32_t> starts = {0, count}, source = {from}, target = {to};
      const StateBatch batch = {
          1, count, count, testing::ints(starts), testing::ints(source), testing::ints(target)};
      const Tensor rows = test.rows.tensor().rows(first, count);
      one->gated_delta_rule(alone.tensor().rows(first, count),
                            test.input(rows, test.a_log.vector(), test.dt_bias.vector()),
                            test.state(slots.tensor()), batch);
    };
    std::int32_t from = -1;
    for (int first = 0, count = 1; first < 40; first += count, ++count) {
      const bool last = first + count >= 40;
      const std::int32_t to = last ? 0 : from == 2 ? 3 : 2;
      step(first, std::min(count, 40 - first), from, to);
      from = to;
    }
    for (int t = 40; t < 63; ++t) step(t, 1, 1, 1);
    EXPECT_EQ(alone.bytes(), together.bytes());
    for (std::int64_t slot = 0; slot < 2; ++slot) {
      for (std::int64_t i = 0; i < slots.tensor().dim(1); ++i)
        ASSERT_EQ(slots.at(slot, i), test.slots.at(slot, i)) << slot << ", " << i;
    }
  }
}

TEST_P(DeltaRuleTest, SigmoidGateGatesElementsAndRowsAndAdds) {
  const auto backend = make(2);
  for (const std::int64_t n : {1, 13, 64, 1030}) {
    for (const std::int64_t width : {std::int64_t{1}, n}) {
      const Matrix x(dtype(), 5, n, random_), gates(dtype(), 5, width + 2, random_, 4.0F);
      Matrix out(dtype(), 5, n, random_), sum(dtype(), 5, n, random_);
      const std::vector<double> before = sum.values();
      const Tensor gate = gates.tensor().columns(1, width);
      ops::sigmoid_gate(*backend, out.tensor(), x.tensor(), gate);
      ops::sigmoid_gate(*backend, sum.tensor(), x.tensor(), gate, true);
      for (std::int64_t t = 0; t < 5; ++t) {
        for (std::int64_t i = 0; i < n; ++i) {
          const double gated = x.at(t, i) * testing::sigmoid(gates.at(t, 1 + (width == 1 ? 0 : i)));
          expect_near(out.at(t, i), gated);
          expect_near(sum.at(t, i), before[static_cast<std::size_t>(t * n + i)] + gated);
        }
      }
    }
  }
}

TEST_P(DeltaRuleTest, GatedNormNormsEachHeadAndGatesIt) {
  const auto backend = make(2);
  for (const std::int64_t n : {1, 7, 16, 128}) {
    constexpr std::int64_t kHeads = 3;
    const Matrix x(DType::kF32, 4, kHeads * n, random_), weight(DType::kF32, 1, n, random_);
    const Matrix gates(dtype(), 4, kHeads * n + 3, random_);
    Matrix out(dtype(), 4, kHeads * n, random_);
    backend->gated_norm(out.tensor(), x.tensor(), gates.tensor().columns(2, kHeads * n),
                        {.weight = weight.vector(), .bias = {}, .eps = 1e-5F});
    for (std::int64_t t = 0; t < 4; ++t) {
      for (std::int64_t i = 0; i < kHeads * n; ++i) {
        double squares = 0;
        for (std::int64_t k = 0; k < n; ++k) squares += x.at(t, i / n * n + k) * x.at(t, i / n * n + k);
        const double z = gates.at(t, 2 + i);
        expect_near(out.at(t, i), x.at(t, i) / std::sqrt(squares / static_cast<double>(n) + 1e-5) *
                                      weight.at(0, i % n) * z * testing::sigmoid(z));
      }
    }
  }
}

TEST_P(DeltaRuleTest, GatedDeltaNetIsConvolutionRuleAndNorm) {
  const auto backend = make(2);
  for (const DeltaShape& shape : kDeltaShapes) {
    DeltaNetCase test(shape, 9, false, dtype(), random_);
    const auto run = [&](const auto& op) {
      Matrix conv_slots(DType::kF32, test.conv_slots.tensor().dim(0), test.conv_slots.tensor().dim(1),
                        random_);
      Matrix slots(DType::kF32, test.slots.tensor().dim(0), test.slots.tensor().dim(1), random_);
      Matrix out(dtype(), test.out.tensor().dim(0), test.out.tensor().dim(1), random_);
      conv_slots.set_bytes(test.conv_slots.bytes());
      slots.set_bytes(test.slots.bytes());
      out.set_bytes(test.out.bytes());
      op(test.output(out.tensor()), test.input(test.rows.tensor()), test.net([&](const Matrix& matrix) {
        return &matrix == &test.slots        ? slots.tensor()
               : &matrix == &test.conv_slots ? conv_slots.tensor()
                                             : matrix.tensor();
      }));
      return std::array{out.bytes(), conv_slots.bytes(), slots.bytes()};
    };
    const auto whole = run([&](const Tensor& out, const Tensor& x, const DeltaNet& net) {
      ops::gated_delta_net(*backend, out, x, net, test.batch());
    });
    const auto parts = run([&](const Tensor& out, const Tensor& x, const DeltaNet& net) {
      const std::int64_t channels = test.channels(), values = shape.values();
      ops::causal_conv(*backend, net.mixed, x.columns(0, channels), net.conv, net.conv_state, test.batch());
      DeltaRuleInput input = net.rule;
      input.qkv = net.mixed;
      input.rates = x.columns(channels + values, 2 * shape.value_heads);
      backend->gated_delta_rule(net.heads, input, net.state, test.batch());
      backend->gated_norm(out, net.heads, x.columns(channels, values), net.norm);
    });
    EXPECT_EQ(whole, parts);
    EXPECT_NE(whole[0], test.out.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, DeltaRuleTest,
                         ::testing::Combine(::testing::ValuesIn(delta_isas()),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           std::string name = std::get<0>(test.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::string(to_string(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace quire
