// Sampling on the GPU: what the CPU reference draws, but for ties in rounding, and the distribution it
// should.
#include "backends/cuda/kernels/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>

#include "backends/cpu/reference/reference_backend.h"
#include "cuda/device_memory.h"
#include "ops/philox.h"

namespace quire::cuda {
namespace {

using testing::DeviceTensor;
using ::testing::ElementsAre;

constexpr float kInfinity = INFINITY;

struct Row {
  std::vector<float> logits;
  float temperature = 1;
  std::int32_t top_k = 0;
  float top_p = 1;
  float min_p = 0;
  std::int64_t seed = 1;
  std::int32_t position = 0;
};

template <typename T>
Tensor tensor_of(std::vector<T>& values, DType dtype) {
  return Tensor(values.data(), dtype, {static_cast<std::int64_t>(values.size())});
}

// Rows as the ops take them; each row of logits is `padding` NaNs longer than the vocabulary.
class RowBatch {
 public:
  explicit RowBatch(const std::vector<Row>& rows, std::size_t padding = 0)
      : vocab_(rows[0].logits.size()), width_(vocab_ + padding) {
    for (const Row& row : rows) {
      logits.insert(logits.end(), row.logits.begin(), row.logits.end());
      logits.resize(logits.size() + padding, NAN);
      temperature.push_back(row.temperature);
      top_k.push_back(row.top_k);
      top_p.push_back(row.top_p);
      min_p.push_back(row.min_p);
      seeds.push_back(row.seed);
      positions.push_back(row.position);
      seats.push_back(static_cast<std::int32_t>(rows.size() - 1 - seats.size()));
    }
  }

  std::int64_t rows() const { return static_cast<std::int64_t>(seats.size()); }
  Tensor logits_of(void* data, DeviceKind device) const {
    return Tensor(data, DType::kF32, {rows(), static_cast<std::int64_t>(width_)}, device)
        .columns(0, static_cast<std::int64_t>(vocab_));
  }

  std::vector<float> logits, temperature, top_p, min_p;
  std::vector<std::int32_t> top_k, positions, seats;
  std::vector<std::int64_t> seeds;

 private:
  std::size_t vocab_, width_;
};

std::vector<std::int32_t> sample_on_cpu(const std::vector<Row>& rows) {
  RowBatch batch(rows);
  const SamplingBatch tensors{.num_rows = static_cast<int>(rows.size()),
                              .temperature = tensor_of(batch.temperature, DType::kF32),
                              .top_k = tensor_of(batch.top_k, DType::kI32),
                              .top_p = tensor_of(batch.top_p, DType::kF32),
                              .min_p = tensor_of(batch.min_p, DType::kF32),
                              .seeds = tensor_of(batch.seeds, DType::kI64),
                              .positions = tensor_of(batch.positions, DType::kI32),
                              .seats = tensor_of(batch.seats, DType::kI32),
                              .workspace = {}};
  std::vector<std::int32_t> tokens(rows.size()), last(rows.size());
  ReferenceBackend().sample(tensor_of(tokens, DType::kI32), tensor_of(last, DType::kI32),
                            batch.logits_of(batch.logits.data(), DeviceKind::kCpu), tensors);
  return tokens;
}

class CudaSamplingTest : public testing::DeviceTest {
 protected:
  // The tokens of the last of `calls` calls, which share a workspace.
  std::vector<std::int32_t> sample_on_gpu(const std::vector<Row>& rows, std::size_t padding = 0,
                                          int calls = 1) const;
  // Both, on the same rows; `different` of them may be decided by rounding.
  void expect_same(const std::string& what, const std::vector<Row>& rows, int different) const;
  std::map<std::int32_t, int> histogram(Row row, int draws) const;
  std::set<std::int32_t> support(const Row& row) const;
  void expect_distribution(const Row& row, const std::vector<double>& probabilities) const;
};

std::vector<std::int32_t> CudaSamplingTest::sample_on_gpu(const std::vector<Row>& rows, std::size_t padding,
                                                          int calls) const {
  RowBatch batch(rows, padding);
  std::vector<std::int32_t> tokens(rows.size(), -7), last(rows.size(), -7);
  const DeviceTensor temperature(tensor_of(batch.temperature, DType::kF32)),
      top_k(tensor_of(batch.top_k, DType::kI32)), top_p(tensor_of(batch.top_p, DType::kF32)),
      min_p(tensor_of(batch.min_p, DType::kF32)), seeds(tensor_of(batch.seeds, DType::kI64)),
      positions(tensor_of(batch.positions, DType::kI32)), seats(tensor_of(batch.seats, DType::kI32)),
      device_tokens(tensor_of(tokens, DType::kI32)), device_last(tensor_of(last, DType::kI32)),
      logits(tensor_of(batch.logits, DType::kF32));
  SamplingBatch tensors{.num_rows = static_cast<int>(rows.size()),
                        .temperature = temperature.tensor(),
                        .top_k = top_k.tensor(),
                        .top_p = top_p.tensor(),
                        .min_p = min_p.tensor(),
                        .seeds = seeds.tensor(),
                        .positions = positions.tensor(),
                        .seats = seats.tensor(),
                        .workspace = {}};
  const Tensor matrix = batch.logits_of(logits.tensor().data(), DeviceKind::kCuda);
  const std::size_t bytes = sampling_workspace_bytes(context_, static_cast<int>(rows.size()), matrix.dim(1));
  std::vector<std::uint8_t> nothing(bytes + 1);
  const DeviceTensor workspace(tensor_of(nothing, DType::kU8));
  tensors.workspace = workspace.tensor();
  for (int i = 0; i < calls; ++i) {
    device_tokens.poison();
    sample(context_, device_tokens.tensor(), device_last.tensor(), matrix, tensors);
  }
  device_tokens.download(tensor_of(tokens, DType::kI32));
  device_last.download(tensor_of(last, DType::kI32));
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(last[rows.size() - 1 - i], tokens[i]) << "its seat";

  std::vector<float> after(batch.logits.size());
  logits.download(tensor_of(after, DType::kF32));
  EXPECT_EQ(std::memcmp(after.data(), batch.logits.data(), after.size() * sizeof(float)), 0)
      << "logits were changed";
  return tokens;
}

void CudaSamplingTest::expect_same(const std::string& what, const std::vector<Row>& rows,
                                   int different) const {
  const auto expected = sample_on_cpu(rows);
  const auto actual = sample_on_gpu(rows);
  int count = 0;
  std::string first;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (expected[i] == actual[i]) continue;
    if (count++ == 0) {
      first = "row " + std::to_string(i) + ": " + std::to_string(actual[i]) + ", not " +
              std::to_string(expected[i]);
    }
  }
  EXPECT_LE(count, different) << what << ", first at " << first;
}

std::map<std::int32_t, int> CudaSamplingTest::histogram(Row row, int draws) const {
  std::map<std::int32_t, int> counts;
  std::vector<Row> rows;
  for (int i = 0; i < draws; ++i) {
    row.position = i;
    rows.push_back(row);
  }
  for (const std::int32_t token : sample_on_gpu(rows)) ++counts[token];
  return counts;
}

std::set<std::int32_t> CudaSamplingTest::support(const Row& row) const {
  std::set<std::int32_t> tokens;
  for (const auto& [token, count] : histogram(row, 3000)) tokens.insert(token);
  return tokens;
}

// By chi-squared over the tokens that are expected often enough: one false alarm in some thousands.
void CudaSamplingTest::expect_distribution(const Row& row, const std::vector<double>& probabilities) const {
  constexpr int kDraws = 60000;
  const auto counts = histogram(row, kDraws);
  double chi_squared = 0;
  int bins = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const double expected = kDraws * probabilities[i];
    const auto found = counts.find(static_cast<std::int32_t>(i));
    const double observed = found == counts.end() ? 0 : found->second;
    if (probabilities[i] == 0) {
      EXPECT_EQ(observed, 0) << "token " << i << " has been filtered";
    }
    if (expected < 10) continue;
    chi_squared += (observed - expected) * (observed - expected) / expected;
    ++bins;
  }
  const double freedom = bins - 1;
  EXPECT_LT(chi_squared, freedom + 4 * std::sqrt(2 * freedom) + 4) << bins << " tokens";
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  const double top = *std::max_element(logits.begin(), logits.end());
  std::vector<double> result;
  double total = 0;
  for (const float logit : logits) total += std::exp((logit - top) / temperature);
  for (const float logit : logits) result.push_back(std::exp((logit - top) / temperature) / total);
  return result;
}

std::vector<float> normal_logits(std::size_t vocab, float deviation, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> logits(vocab);
  for (float& logit : logits) logit = deviation * normal(random);
  return logits;
}

// What a bf16 head gives: few different values, many of them equal.
std::vector<float> rounded(std::vector<float> logits) {
  for (float& logit : logits) logit = to_float(from_float<BFloat16>(logit));
  return logits;
}

const std::vector<float> kLogits = {1.0F, 3.0F, 2.0F, -1.0F, 0.5F, 2.5F, -4.0F};

TEST_F(CudaSamplingTest, GreedyTakesTheLargestAndTheFirstOfEquals) {
  std::mt19937 random(1);
  for (const std::size_t vocab : {1, 2, 3, 4, 5, 31, 1000, 4999, 50257}) {
    for (const std::size_t count : {1, 3, 17, 255}) {
      if (vocab * count > 1000000) continue;
      std::vector<Row> rows;
      for (std::size_t i = 0; i < count; ++i) {
        // Few values, so that the largest is there often.
        rows.push_back({.logits = normal_logits(vocab, 1, random), .temperature = 0});
        for (float& logit : rows.back().logits) logit = std::round(4 * logit);
      }
      const auto expected = sample_on_cpu(rows);
      EXPECT_EQ(sample_on_gpu(rows), expected) << count << " x " << vocab;
      EXPECT_EQ(sample_on_gpu(rows, 5), expected) << count << " x " << vocab << ", rows 5 apart";
      EXPECT_EQ(sample_on_gpu(rows, 8 - vocab % 4), expected) << count << " x " << vocab << ", aligned";
    }
  }
}

TEST_F(CudaSamplingTest, DrawsWhatTheReferenceDraws) {
  std::mt19937 random(2);
  for (const std::size_t vocab : {1, 3, 7, 130, 4999, 32768}) {
    for (const std::size_t count : {1, 3, 17, 255}) {
      if (vocab * count > 2000000) continue;
      for (const float deviation : {0.0F, 0.5F, 3.0F, 30.0F}) {
        std::vector<Row> rows;
        for (std::size_t i = 0; i < count; ++i) {
          rows.push_back({.logits = normal_logits(vocab, deviation, random),
                          .temperature = i % 2 == 0 ? 0.7F : 1.3F,
                          .seed = static_cast<std::int64_t>(random()) << 30,
                          .position = static_cast<std::int32_t>(random() % 5000)});
        }
        expect_same(std::to_string(count) + " x " + std::to_string(vocab) + ", deviation " +
                        std::to_string(deviation),
                    rows, 1);
      }
    }
  }
}

// Of seed 1, the token 2 has random bits at this position that are nearest to 1.
TEST_F(CudaSamplingTest, DrawsTheOnlyTokenThatMayBeWhateverItsRandomNumber) {
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  const std::vector<Row> rows = {
      {.logits = {kNever, kNever, 0, kNever, kNever, kNever, kNever}, .position = 18056611}};
  EXPECT_EQ(sample_on_gpu(rows), std::vector<std::int32_t>{2});
  EXPECT_EQ(sample_on_cpu(rows), std::vector<std::int32_t>{2});
}

// Where GPU and reference differ in a full vocabulary, the two scores are equal to rounding.
TEST_F(CudaSamplingTest, DrawsDifferFromTheReferenceOnlyInTies) {
  std::mt19937 random(3);
  std::vector<Row> rows;
  for (int i = 0; i < 24; ++i) {
    rows.push_back({.logits = normal_logits(151936, i % 2 == 0 ? 1.0F : 4.0F, random),
                    .temperature = 0.6F,
                    .seed = i,
                    .position = 7 * i});
  }
  const auto expected = sample_on_cpu(rows);
  const auto actual = sample_on_gpu(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto score = [&](std::int32_t id) {
      const auto bits = philox4x32(
          static_cast<std::uint64_t>(rows[i].seed),
          {static_cast<std::uint32_t>(id / 4), static_cast<std::uint32_t>(rows[i].position), 0, 0});
      const double uniform = (bits[static_cast<std::size_t>(id % 4)] + 0.5) * 0x1p-32;
      return rows[i].logits[static_cast<std::size_t>(id)] / 0.6 - std::log(-std::log1p(-uniform));
    };
    ASSERT_GE(actual[i], 0);
    EXPECT_NEAR(score(actual[i]), score(expected[i]), 1e-4) << "row " << i;
  }
}

struct Filter {
  std::int32_t top_k;
  float top_p, min_p;
};

TEST_F(CudaSamplingTest, FiltersAsTheReferenceDoes) {
  std::mt19937 random(4);
  const std::vector<Filter> filters = {
      {1, 1, 0},         {2, 1, 0},          {50, 1, 0},    {4998, 1, 0},    {4999, 1, 0},
      {100000, 1, 0},    {0, 1e-6F, 0},      {0, 0.1F, 0},  {0, 0.5F, 0},    {0, 0.95F, 0},
      {0, 0.999999F, 0}, {0, 1, 0.01F},      {0, 1, 0.5F},  {0, 1, 1.0F},    {20, 0.95F, 0},
      {50, 0.5F, 0},     {500, 0.9F, 0.02F}, {3, 1e-6F, 0}, {0, 0.9F, 0.1F}, {1000, 0.999F, 0}};
  for (std::size_t f = 0; f < filters.size(); ++f) {
    std::vector<Row> rows;
    for (int i = 0; i < 96; ++i) {
      std::vector<float> logits = normal_logits(4999, i % 3 == 0 ? 1.0F : 4.0F, random);
      if (i % 8 == 1) logits = rounded(logits);
      if (i % 8 == 2) std::fill(logits.begin(), logits.end(), 1.25F);
      if (i % 8 == 3) logits[static_cast<std::size_t>(i) * 40] = 60;
      if (i % 8 == 4) std::fill(logits.begin() + 30, logits.end(), -kInfinity);
      if (i % 8 == 5)
        for (float& logit : logits) logit = std::round(logit);
      if (i % 8 == 6) logits[5] = -3.4e38F, logits[6] = -1e30F;
      rows.push_back({.logits = std::move(logits),
                      .temperature = i % 2 == 0 ? 0.6F : 1.5F,
                      .top_k = filters[f].top_k,
                      .top_p = filters[f].top_p,
                      .min_p = filters[f].min_p,
                      .seed = i,
                      .position = 100 * i});
    }
    expect_same("filter " + std::to_string(f), rows, 1);
  }
}

TEST_F(CudaSamplingTest, FiltersAFullVocabulary) {
  std::mt19937 random(5);
  std::vector<Row> rows;
  const std::vector<Filter> filters = {
      {50, 1, 0}, {0, 0.95F, 0}, {20, 0.95F, 0}, {0, 1, 0.05F}, {0, 0.3F, 0}};
  for (int i = 0; i < 20; ++i) {
    const Filter& filter = filters[static_cast<std::size_t>(i) % filters.size()];
    auto logits = normal_logits(151936, i < 10 ? 1.0F : 3.0F, random);
    rows.push_back({.logits = i % 3 == 0 ? rounded(std::move(logits)) : std::move(logits),
                    .temperature = 0.8F,
                    .top_k = filter.top_k,
                    .top_p = filter.top_p,
                    .min_p = filter.min_p,
                    .seed = i});
  }
  expect_same("full vocabulary", rows, 1);
}

TEST_F(CudaSamplingTest, FiltersExtremeTemperatures) {
  std::mt19937 random(6);
  for (const float temperature : {1e-4F, 0.01F, 100.0F, 1e5F}) {
    std::vector<Row> rows;
    for (int i = 0; i < 40; ++i) {
      rows.push_back({.logits = normal_logits(777, 2, random),
                      .temperature = temperature,
                      .top_k = i % 2 == 0 ? 40 : 0,
                      .top_p = i % 3 == 0 ? 1.0F : 0.8F,
                      .position = i});
    }
    expect_same("temperature " + std::to_string(temperature), rows, 1);
  }
}

TEST_F(CudaSamplingTest, FollowsTheSoftmax) {
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    expect_distribution({.logits = kLogits, .temperature = temperature}, softmax(kLogits, temperature));
  }
  std::mt19937 random(7);
  const auto logits = normal_logits(301, 1, random);
  expect_distribution({.logits = logits}, softmax(logits, 1));
}

TEST_F(CudaSamplingTest, FollowsTheFilteredSoftmax) {
  std::mt19937 random(8);
  const auto logits = normal_logits(61, 1, random);
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::vector<float> filtered = logits;
  for (float& logit : filtered) logit = logit < sorted[19] ? -kInfinity : logit;
  expect_distribution({.logits = logits, .top_k = 20}, softmax(filtered, 1));

  const auto probabilities = softmax(logits, 1);
  double mass = 0;
  std::size_t kept = 0;
  while (mass < 0.7) mass += softmax(sorted, 1)[kept++];
  for (std::size_t i = 0; i < logits.size(); ++i)
    filtered[i] = logits[i] < sorted[kept - 1] ? -kInfinity : logits[i];
  expect_distribution({.logits = logits, .top_p = 0.7F}, softmax(filtered, 1));
}

TEST_F(CudaSamplingTest, FiltersLeaveWhatTheySay) {
  EXPECT_THAT(support({.logits = kLogits, .temperature = 3, .top_k = 3}), ElementsAre(1, 2, 5));
  EXPECT_THAT(support({.logits = kLogits, .temperature = 3, .top_k = 1}), ElementsAre(1));
  EXPECT_EQ(support({.logits = kLogits, .temperature = 9, .top_k = 100}).size(), kLogits.size());
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  EXPECT_THAT(support({.logits = logits, .top_p = 0.45F}), ElementsAre(0));
  EXPECT_THAT(support({.logits = logits, .top_p = 0.7F}), ElementsAre(0, 1));
  EXPECT_THAT(support({.logits = logits, .top_p = 0.9F}), ElementsAre(0, 1, 2));
  EXPECT_THAT(support({.logits = logits, .min_p = 0.5F}), ElementsAre(0, 1));
  // Of the two most likely, the first has 62 %.
  EXPECT_THAT(support({.logits = logits, .top_k = 2, .top_p = 0.6F}), ElementsAre(0));
  // Of six equal tokens, the first three reach a half; top-k keeps what is as likely as the last.
  const std::vector<float> flat(6, 2.0F);
  EXPECT_THAT(support({.logits = flat, .top_p = 0.45F}), ElementsAre(0, 1, 2));
  EXPECT_EQ(support({.logits = flat, .top_k = 2}).size(), 6U);
}

TEST_F(CudaSamplingTest, ADrawDependsOnSeedAndPositionAlone) {
  std::mt19937 random(9);
  std::vector<Row> rows;
  for (int i = 0; i < 255; ++i) {
    rows.push_back({.logits = normal_logits(9001, 1, random),
                    .temperature = 1.1F,
                    .top_k = i % 4 == 1 ? 100 : 0,
                    .top_p = i % 4 == 2 ? 0.9F : 1.0F,
                    .seed = 5,
                    .position = i});
  }
  const auto together = sample_on_gpu(rows);
  for (std::size_t i = 0; i < rows.size(); i += 6) EXPECT_EQ(sample_on_gpu({rows[i]}).front(), together[i]);
  const std::vector<Row> some(rows.begin() + 60, rows.begin() + 93);
  EXPECT_THAT(sample_on_gpu(some), ::testing::ElementsAreArray(together.begin() + 60, together.begin() + 93));
  EXPECT_EQ(sample_on_gpu(rows, 0, 3), together) << "again";
  for (Row& row : rows) row.seed = 6;
  EXPECT_NE(sample_on_gpu(rows), together);
}

TEST_F(CudaSamplingTest, LogitsThatAreNotFiniteAreReportedForTheirRowAlone) {
  std::mt19937 random(10);
  const auto good = normal_logits(5003, 1, random);
  for (const std::size_t place : {0UL, 1777UL, 5002UL}) {
    std::vector<float> nan = good, infinite = good, nothing(good.size(), -kInfinity);
    nan[place] = place == 0 ? -NAN : NAN;
    infinite[place] = kInfinity;
    for (const float temperature : {0.0F, 1.0F}) {
      for (const std::int32_t top_k : {0, 30}) {
        const auto tokens = sample_on_gpu({{.logits = nan, .temperature = temperature, .top_k = top_k},
                                           {.logits = good, .temperature = 0},
                                           {.logits = infinite, .temperature = temperature, .top_k = top_k},
                                           {.logits = nothing, .temperature = temperature, .top_k = top_k},
                                           {.logits = good, .temperature = temperature, .top_k = top_k}});
        const auto expected = sample_on_cpu({{.logits = good, .temperature = 0},
                                             {.logits = good, .temperature = temperature, .top_k = top_k}});
        EXPECT_THAT(tokens, ElementsAre(-2, expected[0], -2, -2, expected[1]));
      }
    }
  }
}

}  // namespace
}  // namespace quire::cuda
