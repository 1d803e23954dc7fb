#pragma once

#include "backends/cuda/kernels/launch.h"
#include "ops/logits_batches.h"

namespace quire::cuda {

// Bytes of workspace that sample() needs for up to max_rows rows of vocab_size logits: zeroed when allocated,
// aligned to 16 bytes, and its own.
std::size_t sampling_workspace_bytes(const LaunchContext& context, int max_rows, std::int64_t vocab_size);

// Backend::sample. Same filters and same random numbers as the CPU reference; tokens may differ from it only
// where two candidates are equal to rounding. The logits are read, not changed.
void sample(const LaunchContext& context, const Tensor& tokens, const Tensor& last_tokens,
            const Tensor& logits, const SamplingBatch& batch);

// What each op computes is said at Backend. Rows of token states start at multiples of 16 bytes.
void set_token_states(const LaunchContext& context, const Tensor& seat_states, const Tensor& entries);
void adjust_logits(const LaunchContext& context, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment);
void log_probs(const LaunchContext& context, const LogprobRows& out, const Tensor& logits,
               const LogprobBatch& batch);

}  // namespace quire::cuda
