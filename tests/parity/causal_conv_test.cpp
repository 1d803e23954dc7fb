// The causal convolution of every instruction set this machine has, and of the reference, against the formula
// in double precision; and bitwise against itself, however a sequence is cut.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/isa.h"
#include "backends/registry.h"
#include "parity/state_fixtures.h"

namespace quire {
namespace {

using testing::activated;
using testing::Matrix;
using testing::Slots;
using testing::StateSpan;
using testing::StateSpans;

using Case = std::tuple<std::string, DType>;

class CausalConvTest : public ::testing::TestWithParam<Case> {
 protected:
  DType dtype() const { return std::get<1>(GetParam()); }
  std::unique_ptr<Backend> make(int threads) const {
    return make_backend({.device = "cpu", .cpu_isa = std::get<0>(GetParam()), .cpu_threads = threads});
  }
  double tolerance() const { return dtype() == DType::kF32 ? 2e-6 : dtype() == DType::kF16 ? 1e-3 : 8e-3; }

  std::mt19937 random_{7};
};

std::vector<std::string> all_isas() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_isas()) names.emplace_back(to_string(isa));
  return names;
}

const std::vector<StateSpan> kSpans = {{1, 2, 2},  {5, -1, 0}, {2, 4, 1},  {19, 3, 3},
                                       {3, 5, -1}, {1, -1, 6}, {70, 7, 8}, {0, 9, 10}};
constexpr std::int64_t kSlots = 12;

// The inputs of one sequence's channel: those of its state, then those of the step.
std::vector<double> inputs(const Matrix& x, const Matrix& slots, const StateSpan& span, std::int64_t first,
                           std::int64_t history, std::int64_t channels, std::int64_t channel) {
  std::vector<double> values;
  for (std::int64_t k = 0; k < history; ++k)
    values.push_back(span.from < 0 ? 0.0 : slots.at(span.from, k * channels + channel));
  for (std::int64_t t = 0; t < span.tokens; ++t) values.push_back(x.at(first + t, channel));
  return values;
}

TEST_P(CausalConvTest, SumsTheInputsFromTheStateOnAndKeepsTheLast) {
  const StateSpans spans(kSpans);
  for (const std::int64_t channels : {1, 13, 64, 200}) {
    for (const std::int64_t width : {2, 3, 4}) {
      for (const bool plain : {false, true}) {
        // Rows of x and out are parts of wider ones.
        const Matrix wide(dtype(), spans.batch().num_tokens, channels + 5, random_);
        const Matrix weight(DType::kF32, width, channels, random_), bias(DType::kF32, 1, channels, random_);
        Matrix wide_out(dtype(), spans.batch().num_tokens, channels + 3, random_);
        const std::vector<double> before = wide_out.values();
        Slots state(kSlots, width - 1, channels, random_);
        Matrix old(DType::kF32, kSlots, (width - 1) * channels + 3, random_);
        Matrix expected(DType::kF32, kSlots, (width - 1) * channels + 3, random_);
        old.set_bytes(state.memory().bytes());
        expected.set_bytes(state.memory().bytes());
        const ConvParams params = {weight.tensor(), plain ? Tensor() : bias.vector(),
                                   plain ? Activation::kIdentity : Activation::kSilu};
        ops::causal_conv(*make(2), wide_out.tensor().columns(3, channels), wide.tensor().columns(0, channels),
                         params, state.tensor(), spans.batch());
        std::int64_t first = 0;
        for (const StateSpan& span : spans.spans()) {
          for (std::int64_t c = 0; c < channels; ++c) {
            const std::vector<double> in = inputs(wide, old, span, first, width - 1, channels, c);
            for (std::int64_t t = 0; t < span.tokens; ++t) {
              double sum = plain ? 0 : bias.at(0, c);
              for (std::int64_t k = 0; k < width; ++k)
                sum += weight.at(k, c) * in[static_cast<std::size_t>(t + k)];
              const double actual = wide_out.at(first + t, 3 + c);
              if (span.to < 0) {
                ASSERT_EQ(actual, before[static_cast<std::size_t>((first + t) * (channels + 3) + 3 + c)]);
                continue;
              }
              const double value = plain ? sum : activated(sum, Activation::kSilu);
              ASSERT_NEAR(actual, value, tolerance() * (std::abs(value) + 1)) << first + t << ", " << c;
            }
            for (std::int64_t k = 0; span.to >= 0 && k < width - 1; ++k)
              expected.tensor().rows(span.to, 1).data_as<float>()[k * channels + c] =
                  static_cast<float>(in[static_cast<std::size_t>(span.tokens + k)]);
          }
          first += span.tokens;
        }
        ASSERT_EQ(state.memory().bytes(), expected.bytes()) << channels << " channels, width " << width;
      }
    }
  }
}

TEST_P(CausalConvTest, IsBitwiseTheSameHoweverASequenceIsCut) {
  constexpr std::int64_t kTokens = 40, kChannels = 77, kWidth = 4;
  const Matrix x(dtype(), kTokens, kChannels, random_), weight(DType::kF32, kWidth, kChannels, random_);
  const ConvParams params = {weight.tensor(), {}, Activation::kSilu};
  const auto run = [&](int threads, std::int32_t piece) {
    const auto backend = make(threads);
    auto out = std::make_unique<Matrix>(dtype(), kTokens, kChannels, random_);
    std::mt19937 equal(1);
    Slots state(3, kWidth - 1, kChannels, equal);
    for (std::int32_t t = 0; t < kTokens; t += piece) {
      const std::int32_t tokens = std::min(piece, static_cast<std::int32_t>(kTokens) - t);
      const StateSpans spans({{tokens, t == 0 ? -1 : 1, 1}});
      ops::causal_conv(*backend, out->tensor().rows(t, tokens), x.tensor().rows(t, tokens), params,
                       state.tensor(), spans.batch());
    }
    std::vector<std::byte> bytes = out->bytes();
    bytes.insert(bytes.end(), state.memory().bytes().begin(), state.memory().bytes().end());
    return bytes;
  };
  const std::vector<std::byte> whole = run(1, kTokens);
  for (const std::int32_t piece : {1, 2, 3, 7, 39}) EXPECT_EQ(run(2, piece), whole) << piece;
}

INSTANTIATE_TEST_SUITE_P(Isas, CausalConvTest,
                         ::testing::Combine(::testing::ValuesIn(all_isas()),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" +
                                  std::string(to_string(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace quire
