#pragma once

#include "ops/communicator.h"

namespace quire {

// Another backend behind the same interface: a base for those that watch or replace a part of it.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  std::string_view name() const override { return inner_.name(); }
  DeviceKind device() const override { return inner_.device(); }
  bool supports(DType dtype) const override { return inner_.supports(dtype); }
  bool asynchronous() const override { return inner_.asynchronous(); }

  std::size_t total_memory() const override { return inner_.total_memory(); }
  std::size_t used_memory() const override { return inner_.used_memory(); }
  Buffer allocate(std::size_t bytes, MemoryKind kind) override { return inner_.allocate(bytes, kind); }
  void copy(const Tensor& dst, const Tensor& src) override { inner_.copy(dst, src); }
  Event record() override { return inner_.record(); }
  void wait(Event event) override { inner_.wait(event); }
  bool has_graphs() const override { return inner_.has_graphs(); }
  std::unique_ptr<Graph> capture(const std::function<void()>& ops) override { return inner_.capture(ops); }
  void replay(const Graph& graph) override { inner_.replay(graph); }
  std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> host,
                                        const RankOptions& options) override {
    return inner_.connect(std::move(host), options);
  }
  std::optional<DeviceCeiling> measure_ceiling() override { return inner_.measure_ceiling(); }
  void start_profile() override { inner_.start_profile(); }
  OpTimes stop_profile() override { return inner_.stop_profile(); }

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightTensorPtr> parts, DType dtype) override {
    return inner_.make_linear(parts, dtype);
  }
  std::size_t linear_bytes(std::int64_t out_features, std::int64_t in_features, DType dtype) const override {
    return inner_.linear_bytes(out_features, in_features, dtype);
  }

  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override {
    inner_.linear(out, x, weights, bias);
  }
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override {
    inner_.embedding(out, weights, ids, first_row, scale);
  }
  void norm(const Tensor& out, const Tensor& x, const NormParams& params) override {
    inner_.norm(out, x, params);
  }
  void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                const NormParams& params) override {
    inner_.add_norm(out, residual, x, scale, params);
  }
  std::size_t attention_workspace_bytes(const AttentionShape& shape) const override {
    return inner_.attention_workspace_bytes(shape);
  }
  std::shared_ptr<const AttentionPlan> plan_attention(const AttentionBatch& batch,
                                                      const AttentionShape& shape) override {
    return inner_.plan_attention(batch, shape);
  }
  void prepare_attention(const AttentionInput& input, const KvCacheLayer& cache,
                         const AttentionBatch& batch) override {
    inner_.prepare_attention(input, cache, batch);
  }
  void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache, const AttentionBatch& batch,
                 const AttentionScores& scores) override {
    inner_.attention(out, q, cache, batch, scores);
  }
  void activate(const Tensor& out, const Tensor& x, Activation activation) override {
    inner_.activate(out, x, activation);
  }
  void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) override {
    inner_.activate_gate(out, gate_up, activation);
  }
  void gated_linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& gate_up,
                    Activation activation) override {
    inner_.gated_linear(out, x, weights, gate_up, activation);
  }
  void cap(const Tensor& x, float cap) override { inner_.cap(x, cap); }
  void route_experts(const ExpertRouting& out, const Tensor& logits, bool normalize) override {
    inner_.route_experts(out, logits, normalize);
  }
  void routing_linear(const ExpertRouting& out, const Tensor& x, const LinearWeights& router, bool normalize,
                      const Tensor& logits) override {
    inner_.routing_linear(out, x, router, normalize, logits);
  }
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override {
    return inner_.make_experts(experts, shape, dtype);
  }
  std::size_t expert_bytes(const ExpertShape& shape, DType dtype) const override {
    return inner_.expert_bytes(shape, dtype);
  }
  std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype) const override {
    return inner_.expert_workspace_bytes(shape, dtype);
  }
  void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights, const ExpertRouting& routing,
               const Tensor& workspace) override {
    inner_.experts(out, x, weights, routing, workspace);
  }
  void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) override {
    inner_.gather_rows(out, x, rows);
  }
  void fill_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) override {
    inner_.fill_tokens(ids, places, tokens);
  }
  std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size) const override {
    return inner_.sampling_workspace_bytes(max_rows, vocab_size);
  }
  void set_token_states(const Tensor& slot_states, const Tensor& entries) override {
    inner_.set_token_states(slot_states, entries);
  }
  void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                     const LogitsAdjustment& adjustment) override {
    inner_.adjust_logits(logits, last_tokens, adjustment);
  }
  void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
              const SamplingBatch& batch) override {
    inner_.sample(tokens, last_tokens, logits, batch);
  }
  void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) override {
    inner_.log_probs(out, logits, batch);
  }
  void update_block_tables(const Tensor& tables, const Tensor& entries) override {
    inner_.update_block_tables(tables, entries);
  }
  void copy_blocks(std::span<const KvCacheLayer> to, std::span<const KvCacheLayer> from,
                   const Tensor& pairs) override {
    inner_.copy_blocks(to, from, pairs);
  }

 private:
  Backend& inner_;
};

}  // namespace quire
