#pragma once

#include "backends/cuda/kernels/launch.h"
#include "ops/logits_adjustment.h"
#include "ops/logprob_batch.h"

namespace quire::cuda {

// What each op computes is said at Backend. Rows of token states start at multiples of 16 bytes.
void set_token_states(const LaunchContext& context, const Tensor& slot_states, const Tensor& entries);
void adjust_logits(const LaunchContext& context, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment);
void log_probs(const LaunchContext& context, const LogprobRows& out, const Tensor& logits,
               const LogprobBatch& batch);

}  // namespace quire::cuda
