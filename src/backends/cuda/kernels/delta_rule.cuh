#pragma once

#include <cstdint>

#include "backends/cuda/kernels/launch.h"
#include "ops/state_batch.h"

namespace quire::cuda {

// The operands of Backend::gated_delta_rule.
template <typename T>
struct DeltaArgs {
  float* out;
  const T* qkv;
  const T* rates;
  const float* a_log;
  const float* dt_bias;
  float* state;
  const int* starts;
  const int* from;
  const int* to;
  std::int64_t out_stride, qkv_stride, rates_stride, slot_stride;
  int num_key_heads, num_value_heads, key_dim, value_dim;
  int longest;  // spans of more tokens are computed in chunks
};

// Its long spans in chunks, of bf16 and f16. workspace: delta_rule_workspace_bytes; rows of qkv are whole
// vectors of 8.
template <typename T>
void chunked_delta_rule(const LaunchContext& context, const DeltaArgs<T>& rule, const Tensor& workspace,
                        const StateBatch& batch);

}  // namespace quire::cuda
