#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "ops/logits_batches.h"

namespace quire::testing {

// The definition, in doubles.
inline std::vector<double> log_softmax(const std::vector<float>& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(logit - top - std::log(sum));
  return result;
}

inline int rank_of(const std::vector<float>& logits, std::int32_t token) {
  const float given = logits[static_cast<std::size_t>(token)];
  return 1 +
         static_cast<int>(std::count_if(logits.begin(), logits.end(), [=](float x) { return x > given; }));
}

inline std::vector<std::int32_t> most_likely(const std::vector<float>& logits, int count) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto at = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) { return at(a) > at(b); });
  ids.resize(static_cast<std::size_t>(count));
  return ids;
}

// Rows of every kind: smooth, of few different values, all equal, sorted both ways, with tokens ruled out.
inline std::vector<std::vector<float>> logprob_rows(std::size_t vocab) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 3);
  std::vector<std::vector<float>> rows(7, std::vector<float>(vocab));
  for (auto& row : rows)
    for (float& logit : row) logit = normal(random);
  for (float& logit : rows[1]) logit = std::round(logit);
  std::fill(rows[2].begin(), rows[2].end(), 1.25F);
  std::sort(rows[3].begin(), rows[3].end());
  std::sort(rows[4].begin(), rows[4].end(), std::greater<>());
  for (std::size_t id = 1; id < vocab; ++id) rows[5][id] = -INFINITY;
  rows[6][vocab / 2] = 80;
  return rows;
}

// Checks row i of an answer, which lies on the host.
inline void expect_logprobs(const LogprobRows& rows, std::int64_t i, const std::vector<float>& logits,
                            std::int32_t token, int num_top) {
  const std::int64_t cols = 1 + num_top;
  const auto* ids = rows.ids.data_as<const std::int32_t>() + i * cols;
  const auto* logprobs = rows.logprobs.data_as<const float>() + i * cols;
  const auto expected = log_softmax(logits);
  const auto top = most_likely(logits, num_top);
  EXPECT_EQ(ids[0], token);
  EXPECT_EQ(rows.ranks.data_as<const std::int32_t>()[i], rank_of(logits, token));
  for (int place = 0; place <= num_top; ++place) {
    if (place > 0) {
      ASSERT_EQ(ids[place], top[static_cast<std::size_t>(place - 1)]) << "place " << place;
    }
    const double wanted = expected[static_cast<std::size_t>(ids[place])];
    if (std::isinf(wanted)) {
      ASSERT_EQ(logprobs[place], -INFINITY);
    } else {
      ASSERT_NEAR(logprobs[place], wanted, 1e-5 * (1 + std::abs(wanted))) << "place " << place;
    }
    if (place > 0 && ids[place] == token) {
      ASSERT_EQ(logprobs[place], logprobs[0]) << "one token, two numbers";
    }
  }
}

}  // namespace quire::testing
