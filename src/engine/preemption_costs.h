#pragma once

#include "engine/ranks.h"
#include "scheduler/scheduler.h"

namespace quire {

// Measured with plans of their own: copies of up to 256 blocks to host memory and back, and a prompt's part
// with nothing before it and with as much as the cache holds. Nothing may be in flight; seat 0 and the
// cache's contents are lost. There must be swap space.
PreemptionCosts measure_preemption_costs(RankGroup& ranks, const RuntimeConfig& config);

}  // namespace quire
