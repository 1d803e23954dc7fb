#pragma once

#include "backends/cuda/kernels/launch.h"
#include "ops/logits_adjustment.h"

namespace quire::cuda {

// Backend::set_token_states and Backend::adjust_logits. Rows of token states start at multiples of 16 bytes.
void set_token_states(const LaunchContext& context, const Tensor& slot_states, const Tensor& entries);
void adjust_logits(const LaunchContext& context, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment);

}  // namespace quire::cuda
