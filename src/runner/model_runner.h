#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/model.h"
#include "runner/batch_builder.h"
#include "runner/cache_memory.h"
#include "runner/decode_graphs.h"
#include "runner/pooler.h"
#include "runner/sampler.h"

namespace quire {

// Runs step plans on a backend: owns the model, the KV cache and what makes outputs of hidden states, knows
// no requests. Plans run in the order they are submitted; up to kMaxStepsInFlight may be submitted and not
// yet collected. Thread contract: one thread.
class ModelRunner {
 public:
  // Loads the weights; on_layer: how many layers are. Error when the checkpoint does not fit the model.
  ModelRunner(Backend& backend, Communicator& comm, const RuntimeConfig& config, const ModelConfig& model,
              WeightSource& weights,
              const std::function<void(std::size_t done, std::size_t total)>& on_layer = {});

  // Records steps of one token a sequence for some numbers of sequences, where the configuration wants
  // graphs and the backend has a kernel for each op. Once, before the first plan.
  void capture_graphs();

  // A plan may have copies alone. One that is constrained is sampled when its masks come, by sample, before
  // anything else is submitted.
  void submit(const StepPlan& plan) { submit(plan, find_graph(graphs_, plan)); }
  void sample(const StepMasks& masks);
  // The same op by op, timed; waits for the end. Where the backend has graphs.
  OpTimes submit_profiled(const StepPlan& plan);
  StepResult collect();   // the oldest plan's; waits for it
  void drop_in_flight();  // waits for what was submitted; it has no result

  std::span<const AttentionShape> attention_shapes() const { return batch_builder_.attention_shapes(); }

  // Fills blocks of the KV cache and slots of fixed states with NaN, with the next plan and behind its saves.
  // For tests.
  void poison(std::vector<BlockId> blocks, std::vector<BlockId> slots) {
    cache_.poison(std::move(blocks));
    fixed_states_.poison(std::move(slots));
  }

 private:
  // A plan that was submitted and is not collected, with what it needs to itself.
  struct InFlight {
    StagingArea inputs;
    std::optional<StagingArea> masks;  // from its first masks on
    Sampler::Samples samples;
    Pooler::HostRows last_rows;
    StepResult result = {};
    std::optional<StepOutputs> unsampled = {};  // set: masks are to come
    Event done = 0;
  };

  void submit(const StepPlan& plan, const DecodeGraph* graph);
  void compute(const StepPlan& plan, const StepTensors& inputs, const DecodeGraph* graph, InFlight& step);
  Tensor forward(const StepTensors& inputs);
  InFlight& newest() { return steps_[(oldest_ + num_in_flight_ - 1) % steps_.size()]; }

  Backend& backend_;
  RuntimeConfig config_;
  Workspace workspace_;
  StateDeclarations states_;
  std::unique_ptr<Model> model_;
  Sampler sampler_;
  BatchBuilder batch_builder_;
  Pooler pooler_;
  CacheMemory cache_;
  StateMemory fixed_states_;
  std::vector<DecodeGraph> graphs_;  // in the order of graph_bounds
  Buffer mask_memory_;               // from the first masks on
  std::vector<InFlight> steps_;      // kMaxStepsInFlight of them, in turn
  std::size_t oldest_ = 0;           // of those in flight
  std::size_t num_in_flight_ = 0;
};

}  // namespace quire
