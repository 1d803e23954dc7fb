#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits_adjustment.h"
#include "ops/logprob_batch.h"
#include "ops/sampling_batch.h"

// What is done to single rows of logits, for who has many at once.
namespace quire {

constexpr std::int32_t kInvalidLogits = -2;

// One row of a LogitsAdjustment.
class AdjustedRow {
 public:
  AdjustedRow(const Tensor& logits, const Tensor& last_tokens, const LogitsAdjustment& adjustment,
              std::int64_t i);
  // Changes the logits of ids [begin, end), and counts the last token if it is one of them.
  void apply(std::int64_t begin, std::int64_t end) const;

 private:
  struct Mask {
    std::int32_t id, after;
  };

  float penalized(float logit, std::uint16_t state) const;

  float* logits_;
  std::uint16_t* states_;
  std::int32_t last_token_;
  StateUse state_use_;
  float repetition_, frequency_, presence_;
  std::span<const std::int32_t> bias_ids_;
  const float* bias_values_;
  std::span<const Mask> masks_;
};

// Row i of Ops::log_probs.
void log_probs_row(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch, std::int64_t i);

// One row of a SamplingBatch.
struct SampledRow {
  float temperature, top_p, min_p;
  std::int32_t top_k;
  std::uint64_t seed;
  std::int32_t position;
  std::int32_t seat;

  SampledRow(const SamplingBatch& batch, std::int64_t row);
  bool filters() const { return top_k > 0 || top_p < 1.0F || min_p > 0.0F; }
  // The token drawn from logits whose largest is `top`. `ids` is scratch.
  std::int32_t draw(std::span<const float> logits, float top, std::vector<std::int32_t>& ids) const;
};

}  // namespace quire
