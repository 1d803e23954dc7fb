#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ops/ops.h"
#include "runner/batch_builder.h"
#include "runner/sampler.h"
#include "scheduler/step_plan.h"

namespace quire {

// Steps of one token a sequence, recorded for some numbers of sequences.
class DecodeGraphs {
 public:
  struct DecodeGraph {
    StepBounds bounds;
    std::unique_ptr<Graph> graph;
    StepOutputs outputs;
  };
  using QueueStep = std::function<StepOutputs()>;

  // step_of(bounds): what queues a step of so many padded sequences, whose inputs are on their way. Records
  // none where an op runs on the host, which no graph can hold.
  void capture(Backend& backend, const StepBounds& largest,
               const std::function<QueueStep(const StepBounds&)>& step_of);
  // The smallest that can run the plan, or null.
  const DecodeGraph* find(const StepPlan& plan) const;

 private:
  std::vector<DecodeGraph> graphs_;  // by rows, then by length, the smallest first
};

}  // namespace quire
