#pragma once

#include "ops/backend.h"

// What layers call: each op checks shapes, dtypes and devices once, in every build type, then goes to the
// backend. Meanings and shapes stand in backend.h.
namespace quire::ops {

void linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
            const Tensor& bias = {});
void embedding(Backend& backend, const Tensor& out, const LinearWeights& weights, const Tensor& ids,
               std::int64_t first_row, float scale = 1);
void norm(Backend& backend, const Tensor& out, const Tensor& x, const NormParams& params);
void add_norm(Backend& backend, const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
              const NormParams& params);
std::shared_ptr<const AttentionPlan> plan_attention(Backend& backend, const AttentionBatch& batch,
                                                    const AttentionShape& shape);
void prepare_attention(Backend& backend, const AttentionInput& input, const KvCacheLayer& cache,
                       const AttentionBatch& batch);
void attention(Backend& backend, const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
               const AttentionBatch& batch, const AttentionScores& scores);
void activate(Backend& backend, const Tensor& out, const Tensor& x, Activation activation);
void activate_gate(Backend& backend, const Tensor& out, const Tensor& gate_up, Activation activation);
void gated_linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
                  const Tensor& gate_up, Activation activation);
void cap(Backend& backend, const Tensor& x, float cap);
void route_experts(Backend& backend, const ExpertRouting& out, const Tensor& logits, bool normalize);
void routing_linear(Backend& backend, const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                    bool normalize, const Tensor& logits);
void experts(Backend& backend, const Tensor& out, const Tensor& x, const ExpertWeights& weights,
             const ExpertRouting& routing, const Tensor& workspace);
void gather_rows(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& rows);
void fill_tokens(Backend& backend, const Tensor& ids, const Tensor& places, const Tensor& tokens);
void set_token_states(Backend& backend, const Tensor& slot_states, const Tensor& entries);
void adjust_logits(Backend& backend, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment);
void sample(Backend& backend, const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
            const SamplingBatch& batch);
void log_probs(Backend& backend, const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch);
void update_block_tables(Backend& backend, const Tensor& tables, const Tensor& entries);
void copy_blocks(Backend& backend, std::span<const KvCacheLayer> to, std::span<const KvCacheLayer> from,
                 const Tensor& pairs);

}  // namespace quire::ops
