#pragma once

#include <array>

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/elementwise.h"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/sampling.h"
#include "backends/cuda/linear_weights.h"
#include "backends/cuda/matmul.h"
#include "backends/cuda/op_timer.h"
#include "backends/cuda/quantized_weights.h"
#include "backends/cuda/rank_watch.h"
#include "backends/cuda/w8a8_linear.h"
#include "ops/backend_module.h"
#include "ops/ops.h"

namespace quire::cuda {

// One NVIDIA GPU: ops go to one stream, products to cuBLASLt or to kernels of ours.
class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const ModuleOptions& options);
  ~CudaBackend() override;

  std::string_view name() const override { return name_; }
  DeviceKind device() const override { return DeviceKind::kCuda; }
  bool asynchronous() const override { return true; }

  std::size_t total_memory() const override { return memory().total; }
  std::size_t used_memory() const override { return memory().total - memory().free; }
  Buffer allocate(std::size_t bytes, MemoryKind kind) override;
  void copy(const Tensor& dst, const Tensor& src) override;
  Event record() override;
  void wait(Event event) override;
  bool has_graphs() const override { return true; }
  std::unique_ptr<Graph> capture(const std::function<void()>& ops) override;
  void replay(const Graph& graph) override;
  std::size_t connection_bytes(int num_ranks) const override;
  std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> host,
                                        const RankOptions& options) override;
  std::optional<DeviceCeiling> measure_ceiling() override;
  void start_profile() override;
  OpTimes stop_profile() override;

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override;
  std::size_t linear_bytes(std::span<const WeightGroup> parts, DType dtype) const override;

  void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& bias) override;
  void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids, std::int64_t first_row,
                 float scale) override;
  void norm(const Tensor& out, const Tensor& x, const NormParams& params) override {
    cuda::norm(context(), out, x, params);
  }
  void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                const NormParams& params) override {
    cuda::add_norm(context(), out, residual, x, scale, params);
  }
  std::size_t attention_workspace_bytes(const AttentionShape& shape) const override;
  std::size_t reserved_bytes(std::int64_t /*widest*/, bool has_codes,
                             std::span<const AttentionShape> /*shapes*/) const override {
    return has_codes ? kQuantizedWorkspaceBytes : 0;
  }
  std::shared_ptr<const AttentionPlan> plan_attention(const AttentionBatch& batch,
                                                      const AttentionShape& shape) override;
  void rotate_and_store(const AttentionInput& input, const KvCacheLayer& cache,
                        const AttentionBatch& batch) override {
    cuda::rotate_and_store(context(), input, cache, batch);
  }
  void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache, const AttentionBatch& batch,
                 const AttentionScores& scores) override;
  void self_attention(const Tensor& out, const AttentionInput& input, const KvCacheLayer& cache,
                      const AttentionBatch& batch, const AttentionScores& scores) override;
  void causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                   const StateBatch& batch) override {
    if (!causal_conv_supports(params)) return Backend::causal_conv(out, x, params, state, batch);
    cuda::causal_conv(context(), out, x, params, state, batch);
  }
  void activate(const Tensor& out, const Tensor& x, Activation activation) override {
    cuda::activate(context(), out, x, activation);
  }
  void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) override {
    cuda::activate_gate(context(), out, gate_up, activation);
  }
  void gated_linear(const Tensor& out, const Tensor& x, const LinearWeights& weights, const Tensor& gate_up,
                    Activation activation) override;
  void sigmoid_gate(const Tensor& out, const Tensor& x, const Tensor& gate, bool add) override {
    cuda::sigmoid_gate(context(), out, x, gate, add);
  }
  void gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params) override {
    cuda::gated_norm(context(), out, x, gate, params);
  }
  void gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                        const StateBatch& batch) override {
    cuda::gated_delta_rule(context(), out, input, state, batch);
  }
  void gated_delta_net(const Tensor& out, const Tensor& x, const DeltaNet& net,
                       const StateBatch& batch) override {
    if (!delta_step_supports(context(), net, batch)) return Backend::gated_delta_net(out, x, net, batch);
    delta_step(context(), out, x, net, batch);
  }
  std::size_t delta_rule_workspace_bytes(const DeltaRuleShape& shape, DType dtype) const override {
    return deterministic_ ? 0 : cuda::delta_rule_workspace_bytes(context_, shape, dtype);
  }
  void cap(const Tensor& x, float cap) override { cuda::cap(context(), x, cap); }
  void route_experts(const ExpertRouting& out, const Tensor& logits, const RouterOptions& options) override {
    cuda::route_experts(context(), out, logits, options);
  }
  void routing_linear(const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                      const RouterOptions& options, const Tensor& logits) override;
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override;
  std::size_t expert_bytes(std::span<const ExpertParts> experts, DType dtype) const override;
  std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype) const override {
    return cuda::expert_workspace_bytes(shape, dtype);
  }
  void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights, const ExpertRouting& routing,
               const Tensor& workspace) override;
  void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) override {
    cuda::gather_rows(context(), out, x, rows);
  }
  void gather_cols(const Tensor& out, const Tensor& x, const Tensor& cols) override {
    cuda::gather_cols(context(), out, x, cols);
  }
  void take_sampled_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) override {
    cuda::take_sampled_tokens(context(), ids, places, tokens);
  }
  std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size) const override {
    return cuda::sampling_workspace_bytes(context_, max_rows, vocab_size);
  }
  void set_token_states(const Tensor& seat_states, const Tensor& entries) override {
    cuda::set_token_states(context(), seat_states, entries);
  }
  void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                     const LogitsAdjustment& adjustment) override {
    cuda::adjust_logits(context(OpKind::kSampling), logits, last_tokens, adjustment);
  }
  void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
              const SamplingBatch& batch) override {
    cuda::sample(context(OpKind::kSampling), tokens, last_tokens, logits, batch);
  }
  void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) override {
    cuda::log_probs(context(OpKind::kSampling), out, logits, batch);
  }
  void update_block_tables(const Tensor& tables, const Tensor& entries) override {
    if (entries.dim(0) > 0) cuda::update_block_tables(context(), tables, entries);
  }
  void copy_blocks(const Tensor& to, const Tensor& from, const Tensor& pairs) override {
    cuda::copy_blocks(context(), to, from, pairs);
  }

  // Makes the device this thread's current one; every op begins with it.
  const LaunchContext& context(OpKind kind = OpKind::kOther) const;
  int device_index() const { return device_; }
  bool deterministic() const { return deterministic_; }

 private:
  static constexpr std::size_t kEvents = 64;  // that may be waited for at one time

  struct Memory {
    std::size_t free = 0;
    std::size_t total = 0;
  };
  Memory memory() const;
  // The rows at the buffer's begin.
  Tensor load(const WeightTensor& rows, const Buffer& buffer, DType dtype);
  // Memory with the codes and, behind them, the tail.
  Buffer load_codes(const WeightTensor& codes, std::span<const std::byte> tail);
  // Deterministic, one kernel takes all rows of attention, and its part of the workspace is the whole.
  PrefillOf prefill_of() const { return deterministic_ ? PrefillOf::kAllInFixedOrder : PrefillOf::kChunks; }
  std::int64_t prefill_start(const AttentionShape& shape) const;
  Tensor prefill_workspace(const Tensor& workspace, const AttentionShape& shape) const;

  int device_ = 0;
  LaunchContext context_;
  std::string name_;
  bool deterministic_ = false;
  std::array<CudaEvent, kEvents> events_;
  Event last_event_ = 0;
  Buffer library_workspace_;
  std::unique_ptr<LibraryMatmul> library_;
  Buffer quantized_workspace_;            // empty where no matrix is quantised
  std::unique_ptr<WeightLoader> loader_;  // until the first product
  std::unique_ptr<OpTimer> timer_;        // while ops are timed
  std::shared_ptr<RankWatch> watch_;      // null: there are no other ranks
};

}  // namespace quire::cuda
