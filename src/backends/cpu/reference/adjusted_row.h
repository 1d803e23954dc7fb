#pragma once

#include <cstdint>
#include <span>

#include "ops/logits_adjustment.h"

namespace quire {

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

}  // namespace quire
