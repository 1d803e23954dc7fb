#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/sampling_batch.h"

namespace quire {

constexpr std::int32_t kInvalidLogits = -2;

// One row of a SamplingBatch.
struct SampledRow {
  float temperature, top_p, min_p;
  std::int32_t top_k;
  std::uint64_t seed;
  std::int32_t position;
  std::int32_t slot;

  SampledRow(const SamplingBatch& batch, std::int64_t row);
  bool filters() const { return top_k > 0 || top_p < 1.0F || min_p > 0.0F; }
  // The token drawn from logits whose largest is `top`. `ids` is scratch.
  std::int32_t draw(std::span<const float> logits, float top, std::vector<std::int32_t>& ids) const;
};

}  // namespace quire
