#pragma once

#include <vector>

#include "ops/backend.h"

namespace quire {

// Every op in plain C++: the oracle that other implementations are compared with, and what runs where nothing
// faster exists. Each output element is summed in one fixed order, whatever else is in the batch. Ops run as
// they are called.
class ReferenceBackend : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  DeviceKind device() const override { return DeviceKind::kCpu; }
  bool supports(DType dtype) const override { return is_float(dtype); }
  bool asynchronous() const override { return false; }

  std::size_t total_memory() const override;
  Buffer allocate(std::size_t bytes, MemoryKind kind) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  Event record() override { return 0; }
  void wait(Event) override {}

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightTensorPtr> parts, DType dtype) override;
  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override;
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override;
  void norm(const Tensor& out, const Tensor& x, const NormParams& params) override;
  void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                const NormParams& params) override;
  void prepare_attention(const AttentionInput& input, const KvCacheLayer& cache,
                         const AttentionBatch& batch) override;
  void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache, const AttentionBatch& batch,
                 const AttentionScores& scores) override;
  void activate(const Tensor& out, const Tensor& x, Activation activation) override;
  void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) override;
  void cap(const Tensor& x, float cap) override;
  void route_experts(const ExpertRouting& out, const Tensor& logits, bool normalize) override;
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override;
  void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights, const ExpertRouting& routing,
               const Tensor& workspace) override;
  void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) override;
  void fill_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) override;
  void set_token_states(const Tensor& slot_states, const Tensor& entries) override;
  void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                     const LogitsAdjustment& adjustment) override;
  void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
              const SamplingBatch& batch) override;
  void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) override;
  void update_block_tables(const Tensor& tables, const Tensor& entries) override;
  void copy_blocks(std::span<const KvCacheLayer> to, std::span<const KvCacheLayer> from,
                   const Tensor& pairs) override;

 private:
  std::vector<float> scratch_;           // rows widened to float32, or a row of scores
  std::vector<std::int32_t> survivors_;  // of a row of logits, while it is sampled
  std::vector<float> expert_sums_;       // [tokens, hidden_size]
  std::vector<std::byte> expert_rows_;   // of one expert's tokens
};

}  // namespace quire
