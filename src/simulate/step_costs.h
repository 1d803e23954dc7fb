#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "record/recording.h"

namespace quire {

// What the time of a step depends on: how many tokens it computes, and how many there are of what costs the
// same each.
struct StepShape {
  enum Term : std::uint8_t {
    kStep,        // itself
    kSequence,    // in it
    kDecodePair,  // (token, token it attends to) in one layer of each lane, of a span of one token
    kChunkPair,   // of a longer span
    kCopy,        // of a block, to host memory or from there
    kNumTerms
  };

  double tokens = 0;
  std::array<double, kNumTerms> counts = {1};

  StepShape(const StepPlan& plan, const CacheLayout& layout);
  auto operator<=>(const StepShape&) const = default;
};

struct MeasuredStep {
  StepShape shape;
  double seconds = 0;
};

// Seconds of a step, as a sum. A token costs less or more from some numbers of them on, since weights are
// read once for all.
struct StepCosts {
  std::vector<double> from = {0};  // rises; each up to the next one
  std::vector<double> each;        // of each of StepShape's terms, and then of each token behind `from`

  double seconds(const StepShape& shape) const;
};

// The costs, none below 0, whose errors, as shares of what they make, have the least sum of squares. What no
// step has costs nothing. Error where there are fewer different shapes than kFewestShapes.
StepCosts fit_costs(std::span<const MeasuredStep> steps);
inline constexpr std::size_t kFewestShapes = 20;

// All that a simulation needs to know of a machine and a model. docs/simulate.md says what stands in a file.
struct MachineCosts {
  std::string model, device;  // as they are to be shown
  int steps_in_flight = 1;
  double block_bytes = 0;  // of the KV cache, on one rank; 0: not known
  StepCosts costs;
  // Of the fit: the steps, and how far off it is for half of them and for nine in ten, as a share.
  double num_steps = 0, median_error = 0, p90_error = 0;
  SchedulerConfig scheduler;  // as recordings have it: the layout, and what flags may change
};

// Of a recording of many different steps, each as long as it took from the end of the one before, or from its
// plan where nothing was to be done before. block_bytes stays 0. Error where the recording has no beginning.
MachineCosts fit_machine(const Recording& recording);
std::string to_json(const MachineCosts& machine);
// Error where the file is none, or has numbers that cannot be.
MachineCosts read_machine(const std::filesystem::path& path);

struct CostsOptions {
  EngineConfig engine;  // record: where the steps are kept; swap_space 0: some
  double seconds = 60;  // to measure for, about
  std::function<void(std::size_t done, std::size_t total)> on_progress;  // seconds
};

// Has the engine compute steps of many shapes: prompts of all lengths, alone and in batches, and their
// decoding. Error where the model is so slow, or what may run so small, that there are too few.
MachineCosts measure_costs(const CostsOptions& options, ModelFiles model);

}  // namespace quire
