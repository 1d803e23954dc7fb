// Filters and penalties on rows whose answer transformers' own logits processors gave
// (tools/make_sampling_cases.py).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "backends/isa.h"
#include "backends/registry.h"
#include "base/json.h"
#include "ops/ops.h"
#include "ops/reference/logits_rows.h"
#include "parity/adjustment_fixtures.h"
#include "parity/ops_fixtures.h"

namespace quire {
namespace {

using testing::AdjustArrays;
using testing::AdjustRow;
using testing::tensor_of;

constexpr const char* kFile = QUIRE_SOURCE_DIR "/tests/parity/sampling_cases.jsonl";

struct SamplingCase {
  AdjustRow row;
  std::vector<float> adjusted;  // logits that biases, bad words and penalties leave
  float temperature = 1, min_p = 0, top_p = 1;
  std::int32_t top_k = 0;
  std::vector<std::int32_t> kept;  // what the filters leave, in order
};

AdjustRow row_of(const Json& json) {
  AdjustRow row;
  for (const int logit : json.at("logits")) row.logits.push_back(static_cast<float>(logit) / 64);
  const auto prompt = json.value("prompt", std::vector<std::int32_t>{});
  const auto output = json.value("output", std::vector<std::int32_t>{0});
  row.prompt = {prompt.begin(), prompt.end()};
  for (const std::int32_t id : output) ++row.output[id];
  row.last = output.back();
  row.repetition = json.value("repetition", 1.0F);
  if (row.repetition != 1) row.use = StateUse::kRead;
  for (const Json& bias : json.value("bias", Json::array())) row.biases[bias[0]] = bias[1];
  for (const auto& word : json.value("bad_words", std::vector<std::vector<std::int32_t>>{})) {
    const std::int32_t after = word.size() > 1 ? word[0] : -1;
    const auto found = row.masks.find(word.back());
    // A row of the test has one mask a token: the one that counts.
    if (found == row.masks.end() || after < 0 || after == row.last) row.masks[word.back()] = after;
  }
  return row;
}

std::vector<SamplingCase> read_cases() {
  std::vector<SamplingCase> cases;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) {
    const Json json = parse_json(line, kFile);
    SamplingCase made{.row = row_of(json), .adjusted = {}, .kept = json.at("kept")};
    for (const Json& logit : json.value("adjusted", Json::array()))
      made.adjusted.push_back(logit.is_null() ? -INFINITY : logit.get<float>());
    if (made.adjusted.empty()) made.adjusted = made.row.logits;
    made.temperature = json.value("temperature", 1.0F);
    made.min_p = json.value("min_p", 0.0F);
    made.top_k = json.value("top_k", 0);
    made.top_p = json.value("top_p", 1.0F);
    cases.push_back(std::move(made));
  }
  return cases;
}

// The file's tokens. Where top_p takes some of several equal tokens, transformers leaves to a sort that is
// not stable which; ours are the lowest ids.
std::vector<std::int32_t> expected_tokens(const SamplingCase& one) {
  const auto logit = [&](std::int32_t id) { return one.adjusted[static_cast<std::size_t>(id)]; };
  const float lowest = logit(*std::ranges::min_element(one.kept, {}, logit));
  std::vector<std::int32_t> expected;
  for (const std::int32_t id : one.kept)
    if (logit(id) > lowest) expected.push_back(id);
  for (std::int32_t id = 0; expected.size() < one.kept.size(); ++id)
    if (logit(id) == lowest) expected.push_back(id);
  std::ranges::sort(expected);
  return expected;
}

class SamplingCasesTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  // The logits that are left of a case's, on the backend.
  std::vector<float> adjust(const SamplingCase& one) const {
    AdjustArrays a({one.row});
    const LogitsAdjustment adjustment{
        .num_rows = 1,
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
        .token_states = Tensor(a.states.data(), DType::kI16, {1, a.stride})};
    ops::adjust_logits(*backend_, Tensor(a.logits.data(), DType::kF32, {2, a.vocab}),
                       tensor_of(a.last, DType::kI32), adjustment);
    return {a.logits.begin() + a.vocab, a.logits.end()};
  }

  std::unique_ptr<Backend> backend_ =
      make_backend({.device = "cpu", .cpu_isa = std::string(to_string(GetParam()))});
};

// One row to be sampled at a position, as the op takes it.
struct OneRow {
  std::vector<float> temperature, top_p, min_p;
  std::vector<std::int32_t> top_k, positions, seats = {0}, token = {-9}, last = {-9};
  std::vector<std::int64_t> seeds = {30};
  SamplingBatch batch;

  OneRow(const SamplingCase& one, std::int32_t position)
      : temperature{one.temperature},
        top_p{one.top_p},
        min_p{one.min_p},
        top_k{one.top_k},
        positions{position} {
    batch = {.num_rows = 1,
             .temperature = tensor_of(temperature, DType::kF32),
             .top_k = tensor_of(top_k, DType::kI32),
             .top_p = tensor_of(top_p, DType::kF32),
             .min_p = tensor_of(min_p, DType::kF32),
             .seeds = tensor_of(seeds, DType::kI64),
             .positions = tensor_of(positions, DType::kI32),
             .seats = tensor_of(seats, DType::kI32),
             .workspace = {}};
  }
};

TEST_P(SamplingCasesTest, BiasesBadWordsAndPenaltiesLeaveTheLogitsThatTransformersLeaves) {
  const auto cases = read_cases();
  ASSERT_GT(cases.size(), 100U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const std::vector<float> actual = adjust(cases[i]);
    for (std::size_t id = 0; id < actual.size(); ++id)
      ASSERT_FLOAT_EQ(actual[id], cases[i].adjusted[id]) << "line " << i + 1 << " token " << id;
  }
}

TEST_P(SamplingCasesTest, FiltersLeaveTheTokensThatTransformersLeaves) {
  const auto cases = read_cases();
  ASSERT_GT(cases.size(), 100U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(i + 1);
    std::vector<float> logits = cases[i].adjusted;
    const float top = *std::ranges::max_element(logits);
    const Tensor matrix(logits.data(), DType::kF32, {1, std::ssize(logits)});
    for (std::int32_t position = 0; position < 8; ++position) {
      OneRow one(cases[i], position);
      std::vector<std::int32_t> kept;
      const std::int32_t drawn = SampledRow(one.batch, 0).draw(logits, top, kept);
      // What is ruled out is never drawn, also where no filter takes it out.
      std::erase_if(kept, [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)] == -INFINITY; });
      std::ranges::sort(kept);
      ASSERT_EQ(kept, expected_tokens(cases[i]));
      ops::sample(*backend_, tensor_of(one.token, DType::kI32), tensor_of(one.last, DType::kI32), matrix,
                  one.batch);
      ASSERT_THAT(kept, ::testing::Contains(one.token[0]));
      const bool filtered = cases[i].top_k > 0 || cases[i].top_p < 1 || cases[i].min_p > 0;
      ASSERT_TRUE(!filtered || one.token[0] == drawn) << one.token[0] << " for " << drawn;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, SamplingCasesTest, ::testing::ValuesIn(available_isas()),
                         [](const auto& test) { return std::string(to_string(test.param)); });

}  // namespace
}  // namespace quire
