#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "backends/isa.h"
#include "backends/registry.h"
#include "ops/ops.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using testing::tensor_of;

struct Row {
  std::vector<float> logits;
  float temperature = 1;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  std::int64_t seed = 1;
  std::int32_t position = 0;
};

class SamplingTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  std::vector<std::int32_t> sample(const std::vector<Row>& rows) const {
    return sample_with(GetParam(), rows);
  }
  static std::vector<std::int32_t> sample_with(CpuIsa isa, const std::vector<Row>& rows);
  // How often each token was drawn over many positions.
  std::map<std::int32_t, int> histogram(Row row, int draws) const;
  std::set<std::int32_t> support(const Row& row) const;
};

std::vector<std::int32_t> SamplingTest::sample_with(CpuIsa isa, const std::vector<Row>& rows) {
  const auto backend = make_backend({.device = "cpu", .cpu_isa = std::string(to_string(isa))});
  const std::size_t n = rows.size();
  const std::size_t vocab = rows[0].logits.size();
  std::vector<float> logits, temperature, top_p, min_p;
  std::vector<std::int32_t> top_k, positions, seats, tokens(n), last(n, -9);
  std::vector<std::int64_t> seeds;
  for (const Row& row : rows) {
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
    temperature.push_back(row.temperature);
    top_k.push_back(row.top_k);
    top_p.push_back(row.top_p);
    min_p.push_back(row.min_p);
    seeds.push_back(row.seed);
    positions.push_back(row.position);
    seats.push_back(static_cast<std::int32_t>(n - 1 - seats.size()));
  }
  SamplingBatch batch{.num_rows = static_cast<int>(n),
                      .temperature = tensor_of(temperature, DType::kF32),
                      .top_k = tensor_of(top_k, DType::kI32),
                      .top_p = tensor_of(top_p, DType::kF32),
                      .min_p = tensor_of(min_p, DType::kF32),
                      .seeds = tensor_of(seeds, DType::kI64),
                      .positions = tensor_of(positions, DType::kI32),
                      .seats = tensor_of(seats, DType::kI32),
                      .workspace = {}};
  const Tensor matrix(logits.data(), DType::kF32,
                      {static_cast<std::int64_t>(n), static_cast<std::int64_t>(vocab)});
  ops::sample(*backend, tensor_of(tokens, DType::kI32), tensor_of(last, DType::kI32), matrix, batch);
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(last[n - 1 - i], tokens[i]) << "the seat's last token";
  return tokens;
}

std::map<std::int32_t, int> SamplingTest::histogram(Row row, int draws) const {
  std::map<std::int32_t, int> counts;
  std::vector<Row> rows;
  for (int i = 0; i < draws; ++i) {
    row.position = i;
    rows.push_back(row);
  }
  for (const std::int32_t token : sample(rows)) ++counts[token];
  return counts;
}

std::set<std::int32_t> SamplingTest::support(const Row& row) const {
  std::set<std::int32_t> tokens;
  for (const auto& [token, count] : histogram(row, 3000)) tokens.insert(token);
  return tokens;
}

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, -1.0F, 0.5F, 2.5F, -4.0F};

TEST_P(SamplingTest, GreedyTakesTheLargestAndTheFirstOfEquals) {
  EXPECT_THAT(
      sample({{.logits = kLogits, .temperature = 0}, {.logits = {0, 5, 5, 5, 1, 2, 3}, .temperature = 0}}),
      ElementsAre(1, 1));
}

TEST_P(SamplingTest, FollowsTheSoftmax) {
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    constexpr int kDraws = 40000;
    const auto counts = histogram({.logits = kLogits, .temperature = temperature}, kDraws);
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    double chi_squared = 0;
    for (std::size_t i = 0; i < kLogits.size(); ++i) {
      const double expected = kDraws * std::exp(kLogits[i] / temperature) / total;
      const auto found = counts.find(static_cast<std::int32_t>(i));
      const double observed = found == counts.end() ? 0 : found->second;
      if (expected >= 5) chi_squared += (observed - expected) * (observed - expected) / expected;
    }
    EXPECT_LT(chi_squared, 22.5) << "temperature " << temperature;  // 6 degrees of freedom: one in a thousand
  }
}

TEST_P(SamplingTest, TopKLeavesTheKMostLikely) {
  EXPECT_THAT(support({.logits = kLogits, .temperature = 3, .top_k = 3}), ElementsAre(1, 2, 5));
  EXPECT_THAT(support({.logits = kLogits, .temperature = 3, .top_k = 1}), ElementsAre(1));
  EXPECT_EQ(support({.logits = kLogits, .temperature = 9, .top_k = 100}).size(), kLogits.size());
}

TEST_P(SamplingTest, TopPLeavesTheFewestThatReachIt) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  EXPECT_THAT(support({.logits = logits, .top_p = 0.45F}), ElementsAre(0));
  EXPECT_THAT(support({.logits = logits, .top_p = 0.7F}), ElementsAre(0, 1));
  EXPECT_THAT(support({.logits = logits, .top_p = 0.9F}), ElementsAre(0, 1, 2));
  EXPECT_THAT(support({.logits = logits, .top_p = 1e-6F}), ElementsAre(0));
}

TEST_P(SamplingTest, TopPCountsAmongTheTopK) {
  const std::vector<float> logits = {std::log(0.4F), std::log(0.3F), std::log(0.2F), std::log(0.1F)};
  // Of the two most likely, the first has 57 %.
  EXPECT_THAT(support({.logits = logits, .top_k = 2, .top_p = 0.55F}), ElementsAre(0));
}

TEST_P(SamplingTest, MinPLeavesWhatIsLikelyBesideTheMostLikely) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  EXPECT_THAT(support({.logits = logits, .min_p = 0.5F}), ElementsAre(0, 1));
  EXPECT_THAT(support({.logits = logits, .min_p = 1.0F}), ElementsAre(0));
}

TEST_P(SamplingTest, ADrawDependsOnSeedAndPositionAlone) {
  std::vector<Row> rows;
  for (int i = 0; i < 50; ++i)
    rows.push_back({.logits = kLogits, .temperature = 2, .seed = 5, .position = i});
  const auto together = sample(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(sample({rows[i]}).front(), together[i]);
  for (Row& row : rows) row.seed = 6;
  EXPECT_NE(sample(rows), together);
}

// Of seed 1, the token 2 has random bits at this position that are nearest to 1.
TEST_P(SamplingTest, TheOnlyTokenThatMayIsDrawnWhateverItsRandomNumber) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const Row row{.logits = {kNever, kNever, 0, kNever, kNever, kNever, kNever}, .position = 18056611};
  EXPECT_THAT(sample({row}), ElementsAre(2));
}

TEST_P(SamplingTest, LogitsThatAreNotFiniteAreReportedForTheirRowAlone) {
  std::vector<float> nan = kLogits, infinite = kLogits, nothing(kLogits.size(), -INFINITY);
  nan[3] = NAN;
  infinite[3] = INFINITY;
  for (const float temperature : {0.0F, 1.0F}) {
    const auto tokens = sample({{.logits = nan, .temperature = temperature},
                                {.logits = kLogits, .temperature = 0},
                                {.logits = infinite, .temperature = temperature},
                                {.logits = nothing, .temperature = temperature}});
    EXPECT_THAT(tokens, ElementsAre(-2, 1, -2, -2));
  }
}

// Over a vocabulary that no block divides, what is drawn is what the reference draws, but for rounding.
TEST_P(SamplingTest, DrawsWhatTheReferenceDraws) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 2);
  std::vector<Row> rows(200);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits.resize(4999);
    for (float& logit : rows[i].logits) logit = normal(random);
    rows[i].position = static_cast<std::int32_t>(i);
    rows[i].temperature = i % 3 == 0 ? 0.0F : 0.8F;
    if (i % 7 == 0) rows[i].top_k = 50;
  }
  const auto drawn = sample(rows);
  const auto expected = sample_with(CpuIsa::kReference, rows);
  int different = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) different += drawn[i] != expected[i];
  EXPECT_LE(different, 1);
}

INSTANTIATE_TEST_SUITE_P(Isas, SamplingTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire
