#pragma once

#include "backends/cuda/kernels/launch.h"
#include "ops/attention_batch.h"

namespace quire::cuda {

// Bytes of AttentionBatch::workspace: the plan, and what parts of a sequence leave for the merge.
std::size_t attention_workspace_bytes(const AttentionShape& shape, int num_sms);

// Once a step, before the layers: writes into batch.workspace which block of threads computes what, from the
// lengths on the device, so that a captured graph stays right when lengths change.
void plan_attention(const LaunchContext& context, const AttentionBatch& batch, const AttentionShape& shape);

// out [tokens, num_heads * head_dim] = softmax(q · kᵀ * scale) · v over the paged cache for the sequences of
// one query token. Rows of other sequences, and of sequences whose length is 0, are left alone.
void decode_attention(const LaunchContext& context, const Tensor& out, const Tensor& q,
                      const KvCacheLayer& cache, const AttentionBatch& batch, const AttentionShape& shape,
                      float scale);

// The same, causal, for the sequences of more than one query token.
void prefill_attention(const LaunchContext& context, const Tensor& out, const Tensor& q,
                       const KvCacheLayer& cache, const AttentionBatch& batch, const AttentionShape& shape,
                       float scale);

// The same for all sequences, by one kernel whose sums are taken in an order that depends on the position
// alone: not on the batch, nor on how the sequence was cut into chunks. Also the path for float32.
void fixed_order_attention(const LaunchContext& context, const Tensor& out, const Tensor& q,
                           const KvCacheLayer& cache, const AttentionBatch& batch,
                           const AttentionShape& shape, float scale);

}  // namespace quire::cuda
