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
                        int num_top, std::vector<std::int32_t> rows = {},
                        std::vector<std::int32_t> named = {}) {
    std::vector<float> flat;
    for (const auto& row : logits) flat.insert(flat.end(), row.begin(), row.end());
    const std::int64_t all = std::ssize(logits);
    const std::int64_t n = rows.empty() ? all : std::ssize(rows);
    LogprobBatch batch{.num_rows = static_cast<int>(n),
                       .num_top = num_top,
                       .rows = {},
                       .tokens = Tensor(tokens.data(), DType::kI32, {all})};
    if (!rows.empty()) batch.rows = Tensor(rows.data(), DType::kI32, {n});
    if (!named.empty()) batch.named = Tensor(named.data(), DType::kI32, {n, kMaxNamedLogprobs});
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

// More than a device finds: the host does.
TEST_P(LogProbsTest, MayBeOfTheWholeVocabulary) {
  for (const int num_top : {513, 1000, 5003}) {
    const auto logits = testing::logprob_rows(5003);
    const LogprobRows rows = log_probs(logits, std::vector<std::int32_t>(logits.size(), 11), num_top);
    for (std::size_t i = 0; i < logits.size(); ++i)
      testing::expect_logprobs(rows, static_cast<std::int64_t>(i), logits[i], 11, num_top);
  }
}

TEST_P(LogProbsTest, AreThoseOfNamedTokensInPlaceOfTheMostLikely) {
  const auto logits = testing::logprob_rows(300);
  std::vector<std::int32_t> named(2 * kMaxNamedLogprobs, -1);
  const std::vector<std::int32_t> ids = {299, 0, 17};
  std::copy(ids.begin(), ids.end(), named.begin() + kMaxNamedLogprobs);
  const LogprobRows rows = log_probs(logits, {0, 1, 2, 3, 4, 5, 6}, 5, {6, 1}, named);
  testing::expect_logprobs(rows, 0, logits[6], 6, 5);
  const auto expected = testing::log_softmax(logits[1]);
  const auto* found = rows.ids.data_as<const std::int32_t>() + 6;
  const auto* logprobs = rows.logprobs.data_as<const float>() + 6;
  EXPECT_EQ(found[0], 1);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(found[1 + i], ids[i]);
    EXPECT_NEAR(logprobs[1 + i], expected[static_cast<std::size_t>(ids[i])], 1e-4);
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
