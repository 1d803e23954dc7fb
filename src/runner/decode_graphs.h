#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "runner/batch_builder.h"
#include "runner/sampler.h"
#include "scheduler/step_plan.h"

namespace quire {

// A step of one token a sequence, recorded.
struct DecodeGraph {
  StepBounds bounds;
  std::unique_ptr<Graph> graph;
  StepOutputs outputs;
};

// Of the graphs that there are up to the largest: by rows, then by length, the smallest first.
std::vector<StepBounds> graph_bounds(const StepBounds& largest);
// Of graphs in that order the smallest one that can run the plan, or null.
const DecodeGraph* find_graph(std::span<const DecodeGraph> graphs, const StepPlan& plan);

}  // namespace quire
