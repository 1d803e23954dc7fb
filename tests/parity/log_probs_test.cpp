// Log-probabilities against their definition in doubles.
#include <gtest/gtest.h>

#include "backends/isa.h"
#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/logprob_fixtures.h"

namespace quire {
namespace {

class LogProbsTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  // Of the named rows, or of all.
  LogprobRows log_probs(const std::vector<std::vector<float>>& logits, std::vector<std::int32_t> tokens,
                        int num_top, std::vector<std::int32_t> rows = {}) {
    std::vector<float> flat;
    for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
    const std::int64_t all = std::ssize(logits);
    const std::int64_t n = rows.empty() ? all : std::ssize(rows);
    LogprobBatch batch{.num_rows = static_cast<int>(n),
                       .num_top = num_top,
                       .rows = {},
                       .tokens = Tensor(tokens.data(), DType::kI32, {all})};
    if (!rows.empty()) batch.rows = Tensor(rows.data(), DType::kI32, {n});
    memory_.assign(LogprobRows::bytes(n, num_top), std::byte{0xFF});
    const LogprobRows out = LogprobRows::at(memory_.data(), n, num_top, DeviceKind::kCpu);
    ops::log_probs(*backend_, out, Tensor(flat.data(), DType::kF32, {all, std::ssize(logits[0])}), batch);
    return out;
  }

  std::unique_ptr<Backend> backend_ =
      make_backend({.device = "cpu", .cpu_isa = std::string(to_string(GetParam()))});
  std::vector<std::byte> memory_;
};

TEST_P(LogProbsTest, AreTheLogSoftmaxOfTheTokenAndTheMostLikely) {
  for (const std::size_t vocab : {1, 5, 130, 5003}) {
    const auto logits = testing::logprob_rows(vocab);
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < logits.size(); ++i)
      tokens.push_back(static_cast<std::int32_t>(i * 37 % vocab));
    for (const int num_top : {0, 1, 5, 20, 512}) {
      if (num_top > static_cast<int>(vocab)) continue;
      const LogprobRows rows = log_probs(logits, tokens, num_top);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        SCOPED_TRACE("vocabulary " + std::to_string(vocab) + ", row " + std::to_string(i));
        testing::expect_logprobs(rows, static_cast<std::int64_t>(i), logits[i], tokens[i], num_top);
      }
    }
  }
}

TEST_P(LogProbsTest, OnlyNamedRowsAreReported) {
  const auto logits = testing::logprob_rows(100);
  const LogprobRows rows = log_probs(logits, {0, 1, 2, 3, 4, 5, 6}, 3, {6, 1});
  testing::expect_logprobs(rows, 0, logits[6], 6, 3);
  testing::expect_logprobs(rows, 1, logits[1], 1, 3);
}

TEST_P(LogProbsTest, ATokenThatCouldNotBeSampledHasNone) {
  std::vector<float> nan(50, 1.0F);
  nan[20] = NAN;
  const LogprobRows rows = log_probs({nan}, {-2}, 4);
  EXPECT_EQ(rows.ids.data_as<const std::int32_t>()[0], -2);
  EXPECT_TRUE(std::isnan(rows.logprobs.data_as<const float>()[0]));
  EXPECT_EQ(rows.ranks.data_as<const std::int32_t>()[0], 0);
}

INSTANTIATE_TEST_SUITE_P(Isas, LogProbsTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire
