#include "runner/memory_plan.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

// Sizes are the real backend's, buffers are addresses that nothing may follow. No op is ever called.
class PlanningBackend final : public Backend {
 public:
  PlanningBackend(const Backend& real, MemoryPlan& plan) : real_(real), plan_(plan) {}

  std::string_view name() const override { return real_.name(); }
  DeviceKind device() const override { return real_.device(); }
  std::size_t total_memory() const override { return real_.total_memory(); }
  Buffer allocate(std::size_t bytes, MemoryKind kind) override {
    (kind == MemoryKind::kHost ? plan_.host : plan_.workspace) += bytes;
    void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{64});
    return {std::shared_ptr<void>(nowhere, [](void*) {}), bytes, device()};
  }
  void copy(const Tensor&, const Tensor&) override {}

  std::size_t attention_workspace_bytes(const AttentionShape& shape) const override {
    return real_.attention_workspace_bytes(shape);
  }
  std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype) const override {
    return real_.expert_workspace_bytes(shape, dtype);
  }
  std::size_t delta_rule_workspace_bytes(const DeltaRuleShape& shape, DType dtype) const override {
    return real_.delta_rule_workspace_bytes(shape, dtype);
  }
  std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size) const override {
    return real_.sampling_workspace_bytes(max_rows, vocab_size);
  }
  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) override {
    const auto [rows, cols] = shape_of(parts);
    note(parts);
    plan_.rounds_inputs |= parts.front().format.input.code != InputFormat::Code::kNone;
    plan_.matrices.emplace_back(rows, cols, real_.linear_bytes(parts, dtype));
    plan_.weights += plan_.matrices.back().bytes();
    return std::make_unique<LinearWeights>(plan_.matrices.back());
  }
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts, const ExpertShape& shape,
                                              DType dtype) override {
    for (const ExpertParts& expert : experts) note(std::array{expert.gate, expert.up, expert.down});
    plan_.experts.emplace_back(shape, real_.expert_bytes(experts, dtype));
    plan_.weights += plan_.experts.back().bytes();
    return std::make_unique<ExpertWeights>(plan_.experts.back());
  }
  // Names and columns of the matrices that are no plain ones.
  const std::map<std::string, std::int64_t>& coded() const { return coded_; }
  void linear(const Tensor&, const Tensor&, const LinearWeights&, const Tensor&) override {}
  void embedding(const Tensor&, const LinearWeights&, const Tensor&, std::int64_t, float) override {}
  void experts(const Tensor&, const Tensor&, const ExpertWeights&, const ExpertRouting&,
               const Tensor&) override {}

 private:
  void note(std::span<const WeightGroup> groups) {
    for (const WeightGroup& group : groups)
      if (!group.format.is_plain()) coded_.emplace(group.name(), group.cols);
  }

  const Backend& real_;
  MemoryPlan& plan_;
  std::map<std::string, std::int64_t> coded_;
};

// Has every tensor, of whatever shape, and no values. Linear layers are of the format that `formats` has them
// in, or else plain.
class ShapesOnly final : public WeightSource {
 public:
  explicit ShapesOnly(WeightSource* formats = nullptr) : formats_(formats) {}

  bool contains(std::string_view name) const override {
    return formats_ != nullptr && formats_->contains(name);
  }
  bool has_values() const override { return false; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return make_weight_tensor(std::string(name), DType::kF32, shape, [](std::int64_t, const Tensor&) {});
  }
  std::vector<float> take_vector(std::string_view, std::int64_t) override { return {1}; }
  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    if (formats_ == nullptr) return WeightSource::take_linear(prefix, rows, cols);
    WeightGroup group = formats_->take_linear(prefix, rows, cols);
    rounds_inputs_ |= group.format.input.code != InputFormat::Code::kNone;
    return group;
  }
  bool rounds_inputs() const { return rounds_inputs_; }

 private:
  WeightSource* formats_;
  bool rounds_inputs_ = false;  // a format that was asked for does
};

constexpr int kAnyMaxModelLen = 1;  // tables of positions take time

}  // namespace

StateDeclarations declare_states(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                                 const ModelConfig& model) {
  MemoryPlan plan;
  PlanningBackend planning(backend, plan);
  ShapesOnly shapes;
  Workspace workspace(planning, config.max_num_batched_tokens);
  StateDeclarations states(config.cache_policy);
  find_model_family(model.architecture())
      .load(model, {planning, comm, shapes, workspace, states, config.dtype, config.max_output_rows(),
                    kAnyMaxModelLen, Quantization::kNone, false});
  return states;
}

std::map<std::string, std::int64_t> quantized_tensors(Backend& backend, Communicator& comm,
                                                      const ModelConfig& model, WeightSource& weights,
                                                      Quantization quantization, bool quantize_head) {
  constexpr int kAnyRows = 1;
  MemoryPlan plan;
  PlanningBackend planning(backend, plan);
  Workspace workspace(planning, kAnyRows);
  StateDeclarations states;
  find_model_family(model.architecture())
      .load(model, {planning, comm, weights, workspace, states, DType::kF32, kAnyRows, kAnyMaxModelLen,
                    quantization, quantize_head});
  return planning.coded();
}

MemoryPlan plan_memory(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                       const ModelConfig& model, WeightSource* formats) {
  MemoryPlan plan;
  PlanningBackend planning(backend, plan);
  ShapesOnly shapes(formats);
  const ModelRunner runner(planning, comm, config, model, shapes);
  std::int64_t widest = 0;
  for (const LinearWeights& matrix : plan.matrices) widest = std::max(widest, matrix.in_features());
  for (const ExpertWeights& experts : plan.experts)
    widest = std::max({widest, experts.shape().hidden_size, experts.shape().intermediate_size});
  plan.workspace += backend.reserved_bytes(widest, !planning.coded().empty(), runner.attention_shapes());
  plan.leaves_out_rounding =
      config.weight_only && (shapes.rounds_inputs() || rounds_inputs(config.quantization));
  plan.connections = config.connection_bytes;
  plan.kv_cache = config.cache_bytes();
  QUIRE_CHECK(plan.workspace >= plan.kv_cache);
  plan.workspace -= plan.kv_cache;  // it was allocated like all the rest
  plan.swap_space = config.swap_bytes();
  QUIRE_CHECK(plan.host >= plan.swap_space);
  plan.host -= plan.swap_space;
  return plan;
}

}  // namespace quire
