#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/logits_batches.h"

// What is done to single rows of logits, for who has many at once.
namespace quire {

constexpr std::int32_t kInvalidLogits = -2;

// Row i of Backend::adjust_logits, of which it changes ids [begin, end); the last token is counted if it is
// one of them.
void adjust_row(const Tensor& logits, const Tensor& last_tokens, const LogitsAdjustment& adjustment,
                std::int64_t i, std::int64_t begin, std::int64_t end);

// Row i of Backend::log_probs.
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
  // The token drawn from logits whose largest is `top`; `ids` becomes the tokens among which it was drawn.
  std::int32_t draw(std::span<const float> logits, float top, std::vector<std::int32_t>& ids) const;
};

}  // namespace quire
