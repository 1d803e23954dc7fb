// Routed experts and their gates on the CPU reference, against the formulas in double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>

#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using testing::Matrix;
using testing::plain;

class ReferenceExpertsTest : public ::testing::TestWithParam<DType> {
 protected:
  void expect_close(double actual, double expected) const {
    const double relative = GetParam() == DType::kF32 ? 2e-6 : GetParam() == DType::kF16 ? 1e-3 : 8e-3;
    EXPECT_NEAR(actual, expected, relative * (std::abs(expected) + 1));
  }

  std::mt19937 random_{3};
  std::unique_ptr<Backend> backend_ = make_backend({.cpu_isa = "reference"});
};

// Of gpt-oss, in double.
double swiglu_oai(double gate, double up) {
  gate = std::min(gate, 7.0);
  return (std::clamp(up, -7.0, 7.0) + 1) * gate / (1 + std::exp(-1.702 * gate));
}

TEST_P(ReferenceExpertsTest, SwigluOaiLimitsTheGateAndWhatItGates) {
  Matrix gate_up(GetParam(), 2, 26, random_, 8.0F);
  Matrix out(GetParam(), 2, 13, random_);
  ops::activate_gate(*backend_, out.tensor(), gate_up.tensor(), Activation::kSwigluOai);
  for (std::int64_t i = 0; i < 26; ++i)
    expect_close(out.at(i / 13, i % 13),
                 swiglu_oai(gate_up.at(i / 13, i % 13), gate_up.at(i / 13, 13 + i % 13)));
  const double gate = gate_up.at(0, 0);
  Matrix activated(GetParam(), 2, 26, random_);
  ops::activate(*backend_, activated.tensor(), gate_up.tensor(), Activation::kSwigluOai);
  expect_close(activated.at(0, 0), gate / (1 + std::exp(-1.702 * gate)));
  const float nan = NAN;
  for (const std::int64_t column : {0, 14})  // a gate, and what another one gates
    convert(DType::kF32, &nan, GetParam(), gate_up.tensor().columns(column, 1).data(), 1);
  ops::activate_gate(*backend_, out.tensor(), gate_up.tensor(), Activation::kSwigluOai);
  EXPECT_TRUE(std::isnan(out.at(0, 0)) && std::isnan(out.at(0, 1)));
  EXPECT_FALSE(std::isnan(out.at(0, 2)));
}

// Experts of 5 rows for 4 tokens, and what they make of x in double.
struct ExpertCase {
  static constexpr int kExperts = 3, kHidden = 7, kWide = 5, kTokens = 4, kTop = 2;

  ExpertCase(DType dtype, std::mt19937& random)
      : gate_up_bias(DType::kF32, kExperts, 2 * kWide, random, 3.0F),
        down_bias(DType::kF32, kExperts, kHidden, random),
        x(dtype, kTokens, kHidden, random),
        shares(DType::kF32, kTokens, kTop, random) {
    for (int e = 0; e < kExperts; ++e) {
      gate.emplace_back(dtype, kWide, kHidden, random);
      up.emplace_back(dtype, kWide, kHidden, random);
      down.emplace_back(dtype, kHidden, kWide, random);
      parts.push_back({plain(gate.back()), plain(up.back()), plain(down.back())});
    }
  }
  static ExpertShape shape(Activation activation) {
    return {.num_experts = kExperts,
            .top_k = kTop,
            .hidden_size = kHidden,
            .intermediate_size = kWide,
            .max_num_tokens = kTokens,
            .activation = activation};
  }
  static double product(const Matrix& weights, std::int64_t row, const Matrix& x, std::int64_t token) {
    double sum = 0;
    for (int k = 0; k < kHidden; ++k) sum += weights.at(row, k) * x.at(token, k);
    return sum;
  }
  // And the sum of the terms' magnitudes.
  std::pair<double, double> expected(int token, int column, bool is_oai) const {
    double sum = 0, magnitude = 0;
    const auto add = [&](double term) { sum += term, magnitude += std::abs(term); };
    for (int j = 0; j < kTop; ++j) {
      const auto e = static_cast<std::size_t>(experts[static_cast<std::size_t>(token * kTop + j)]);
      const auto row = static_cast<std::int64_t>(e);
      if (is_oai) add(shares.at(token, j) * down_bias.at(row, column));
      for (int w = 0; w < kWide; ++w) {
        const double g = product(gate[e], w, x, token), u = product(up[e], w, x, token);
        const double inner =
            is_oai ? swiglu_oai(g + gate_up_bias.at(row, w), u + gate_up_bias.at(row, kWide + w))
                   : g / (1 + std::exp(-g)) * u;
        add(shares.at(token, j) * down[e].at(column, w) * inner);
      }
    }
    return {sum, magnitude};
  }

  std::deque<Matrix> gate, up, down;
  std::vector<ExpertParts> parts;
  Matrix gate_up_bias, down_bias, x, shares;
  std::vector<std::int32_t> experts = {0, 1, 2, 0, 1, 2, 0, 2};
};

// Without biases and a gate of SiLU, and with both of gpt-oss.
TEST_P(ReferenceExpertsTest, ExpertsAddWhatTheRoutingNames) {
  ExpertCase test(GetParam(), random_);
  Matrix out(GetParam(), ExpertCase::kTokens, ExpertCase::kHidden, random_);
  for (const bool is_oai : {false, true}) {
    const Activation activation = is_oai ? Activation::kSwigluOai : Activation::kSilu;
    const auto weights = backend_->make_experts(test.parts, ExpertCase::shape(activation), GetParam());
    if (is_oai) weights->set_biases({test.gate_up_bias.vector(), test.down_bias.vector()});
    ops::experts(*backend_, out.tensor(), test.x.tensor(), *weights,
                 {Tensor(test.experts.data(), DType::kI32, {ExpertCase::kTokens, ExpertCase::kTop}),
                  test.shares.tensor()},
                 {});
    for (int t = 0; t < ExpertCase::kTokens; ++t) {
      for (int h = 0; h < ExpertCase::kHidden; ++h) {
        const auto [expected, magnitude] = test.expected(t, h, is_oai);
        EXPECT_NEAR(out.at(t, h), expected, magnitude * (GetParam() == DType::kF32 ? 1e-6 : 0.01)) << is_oai;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, ReferenceExpertsTest,
                         ::testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire
