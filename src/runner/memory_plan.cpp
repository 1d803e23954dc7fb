#include "runner/memory_plan.h"

#include "base/error.h"
#include "ops/forwarding_backend.h"
#include "runner/model_runner.h"

namespace quire {
namespace {

class PlannedWeights final : public LinearWeights {
 public:
  explicit PlannedWeights(const MemoryPlan::Matrix& matrix) : matrix_(matrix) {}
  std::int64_t out_features() const override { return matrix_.out_features; }
  std::int64_t in_features() const override { return matrix_.in_features; }
  std::size_t bytes() const override { return matrix_.bytes; }

 private:
  MemoryPlan::Matrix matrix_;
};

class PlannedExperts final : public ExpertWeights {
 public:
  explicit PlannedExperts(const MemoryPlan::Experts& experts)
      : ExpertWeights(experts.shape), bytes_(experts.bytes) {}
  std::size_t bytes() const override { return bytes_; }

 private:
  std::size_t bytes_;
};

// Sizes are the real backend's, buffers are addresses that nothing may follow. No op is ever called.
class PlanningBackend final : public ForwardingBackend {
 public:
  PlanningBackend(Backend& real, MemoryPlan& plan) : ForwardingBackend(real), plan_(plan) {}

  Buffer allocate(std::size_t bytes, MemoryKind kind) override {
    (kind == MemoryKind::kHost ? plan_.host : plan_.workspace) += bytes;
    void* const nowhere = reinterpret_cast<void*>(std::uintptr_t{64});
    return {std::shared_ptr<void>(nowhere, [](void*) {}), bytes, device()};
  }
  void copy(const Tensor&, const Tensor&) override {}
  Event record() override { return 0; }
  void wait(Event) override {}

  std::unique_ptr<LinearWeights> make_linear(std::span<const WeightTensorPtr> parts, DType dtype) override {
    MemoryPlan::Matrix matrix;
    for (const WeightTensorPtr& part : parts) matrix.out_features += part->rows();
    matrix.in_features = parts.front()->cols();
    matrix.bytes = linear_bytes(matrix.out_features, matrix.in_features, dtype);
    plan_.matrices.push_back(matrix);
    plan_.weights += matrix.bytes;
    return std::make_unique<PlannedWeights>(matrix);
  }
  std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts>, const ExpertShape& shape,
                                              DType dtype) override {
    const MemoryPlan::Experts experts{shape, expert_bytes(shape, dtype)};
    plan_.experts.push_back(experts);
    plan_.weights += experts.bytes;
    return std::make_unique<PlannedExperts>(experts);
  }

 private:
  MemoryPlan& plan_;
};

// Has every tensor, of whatever shape, and no values.
class ShapesOnly final : public WeightSource {
 public:
  bool contains(std::string_view) const override { return false; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return std::make_shared<Shape>(std::string(name), shape);
  }

 private:
  class Shape final : public WeightTensor {
   public:
    Shape(std::string name, std::vector<std::int64_t> shape)
        : name_(std::move(name)), shape_(std::move(shape)) {}
    const std::string& name() const override { return name_; }
    DType dtype() const override { return DType::kF32; }
    const std::vector<std::int64_t>& shape() const override { return shape_; }
    void read_rows(std::int64_t row, const Tensor& dst) const override { check_read(row, dst); }

   private:
    std::string name_;
    std::vector<std::int64_t> shape_;
  };
};

}  // namespace

StateDeclarations declare_states(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                                 const ModelConfig& model) {
  MemoryPlan plan;
  PlanningBackend planning(backend, plan);
  ShapesOnly shapes;
  Workspace workspace(planning, config.max_num_batched_tokens);
  StateDeclarations states;
  find_model_family(model.architecture())
      .load(model, {planning, comm, shapes, workspace, states, config.dtype, config.max_output_rows(),
                    config.max_model_len});
  return states;
}

MemoryPlan plan_memory(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                       const ModelConfig& model) {
  MemoryPlan plan;
  PlanningBackend planning(backend, plan);
  ShapesOnly shapes;
  const ModelRunner runner(planning, comm, config, model, shapes);
  plan.kv_cache = config.block_bytes() * static_cast<std::size_t>(config.num_blocks);
  QUIRE_CHECK(plan.workspace >= plan.kv_cache);
  plan.workspace -= plan.kv_cache;  // it was allocated like all the rest
  plan.swap_space = config.block_bytes() * static_cast<std::size_t>(config.num_host_blocks);
  QUIRE_CHECK(plan.host >= plan.swap_space);
  plan.host -= plan.swap_space;
  return plan;
}

}  // namespace quire
