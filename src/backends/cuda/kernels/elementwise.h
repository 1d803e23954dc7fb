#pragma once

#include "backends/cuda/kernels/launch.h"
#include "ops/ops.h"

namespace quire::cuda {

// What each op computes, and the shapes, are said at Backend.

void embedding(const LaunchContext& context, const Tensor& out, const Tensor& weight, const Tensor& ids,
               std::int64_t first_row, float scale);
void norm(const LaunchContext& context, const Tensor& out, const Tensor& x, const NormParams& params);
void add_norm(const LaunchContext& context, const Tensor& out, const Tensor& residual, const Tensor& x,
              float scale, const NormParams& params);
// Tokens whose slot is negative are left out of the cache.
void rotate_and_store(const LaunchContext& context, const AttentionInput& input, const KvCacheLayer& cache,
                      const AttentionBatch& batch);
// Of 2 to 4 tokens; more are no kernel's.
bool causal_conv_supports(const ConvParams& params);
void causal_conv(const LaunchContext& context, const Tensor& out, const Tensor& x, const ConvParams& params,
                 const Tensor& state, const StateBatch& batch);
void activate(const LaunchContext& context, const Tensor& out, const Tensor& x, Activation activation);
void activate_gate(const LaunchContext& context, const Tensor& out, const Tensor& gate_up,
                   Activation activation);
// gate's rows are as wide as x's, or have one element.
void sigmoid_gate(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& gate,
                  bool add);
void gated_norm(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& gate,
                const NormParams& params);
// With a workspace long spans are computed in chunks, the others as all are without one.
void gated_delta_rule(const LaunchContext& context, const Tensor& out, const DeltaRuleInput& input,
                      const Tensor& state, const StateBatch& batch);
// Steps of one token a sequence, on devices with clusters, of a convolution of 4 tokens without bias, keys of
// up to 128, and up to 256 values for each key head; or of heads of 128 and many sequences.
bool delta_step_supports(const LaunchContext& context, const DeltaNet& net, const StateBatch& batch);
void delta_step(const LaunchContext& context, const Tensor& out, const Tensor& x, const DeltaNet& net,
                const StateBatch& batch);
// 0 where chunks are no kernel's: of float32, and of heads of other sizes than 128 × a multiple of 64.
std::size_t delta_rule_workspace_bytes(const LaunchContext& context, const DeltaRuleShape& shape,
                                       DType dtype);
void cap(const LaunchContext& context, const Tensor& x, float cap);
void gather_rows(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& rows);
void gather_cols(const LaunchContext& context, const Tensor& out, const Tensor& x, const Tensor& cols);
void take_sampled_tokens(const LaunchContext& context, const Tensor& ids, const Tensor& places,
                         const Tensor& tokens);
void update_block_tables(const LaunchContext& context, const Tensor& tables, const Tensor& entries);
void copy_blocks(const LaunchContext& context, const Tensor& to, const Tensor& from, const Tensor& pairs);

}  // namespace quire::cuda
