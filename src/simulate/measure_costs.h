#pragma once

#include <functional>

#include "engine/engine.h"
#include "simulate/step_costs.h"

namespace quire {

struct CostsOptions {
  EngineConfig engine;  // record: where the steps are kept; swap_space 0: some
  double seconds = 60;  // to measure for, about
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // seconds
};

// Has the engine compute steps of many shapes: prompts of all lengths, alone and in batches, and their
// decoding. Error where the model is so slow, or what may run so small, that there are too few.
MachineCosts measure_costs(const CostsOptions& options, ModelFiles model);

}  // namespace quire
