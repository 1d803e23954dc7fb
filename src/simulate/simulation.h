#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inspect/workload.h"
#include "record/recording.h"

namespace quire {

// What comes to a simulated engine from outside, and when.
struct Arrival {
  double seconds = 0;                                   // from the start
  std::shared_ptr<const SequenceRequest> request = {};  // null: `aborted` ends
  SequenceId aborted = 0;
  // What is sampled, of each of its outputs: behind the end, or where there is none, token 0.
  std::vector<std::vector<TokenId>> outputs = {};
};

// The next one; none: there is no more. In order of time.
using Arrivals = std::function<std::optional<Arrival>()>;

// What came to a recorded engine: the same lengths, aborts and shared prefixes, at the same times. Outputs
// end where they ended, and where the recording was cut off. Error where it does not begin at the start, has
// what is not simulated (beam search), or does not know what blocks of block_size tokens have in common.
std::vector<Arrival> recorded_arrivals(const Recording& recording, int block_size);
Arrivals replay(std::span<const Arrival> arrivals);  // which outlive it

// Prompts that share nothing but that each begins with one of num_prefixes prefixes. Ids are 1, 2, 3, …
struct GeneratedLoad {
  std::vector<RequestSize> sizes;  // beside the prefix
  std::vector<double> times;       // of each; in order
  int prefix_len = 0;
  int num_prefixes = 1;
  int num_outputs = 1;  // of a request
};
Arrivals generate(const GeneratedLoad& load);  // which outlives it

// Times, of which there may be billions: what is told of them is at most a thousandth off.
class Times {
 public:
  void add(double seconds);
  std::uint64_t count() const { return count_; }
  double mean() const { return sum_ / static_cast<double>(count_); }  // NaN of none
  double percentile(double fraction) const;                           // NaN of none

 private:
  struct Bin {
    std::uint64_t count = 0;
    double sum = 0;
  };

  std::vector<Bin> bins_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

struct SimulationOptions {
  SchedulerConfig scheduler;
  int steps_in_flight = 1;
  std::function<double(const StepPlan&)> seconds;  // that a step takes
  // Sequences under way at once; a request that waits for that comes when there is room.
  std::size_t max_concurrency = std::numeric_limits<std::size_t>::max();
  // What comes while so many wait is kept outside until fewer do, which takes less memory. First come, first
  // served, no plan differs where there are more than may run.
  std::size_t max_waiting = std::numeric_limits<std::size_t>::max();
  std::function<void(std::size_t done)> on_progress = {};  // sequences
};

struct SimulationResult {
  double seconds = 0;                                            // until the last one has ended
  std::uint64_t num_done = 0, num_aborted = 0, num_refused = 0;  // sequences; requests that could never run
  std::uint64_t prompt_tokens = 0, output_tokens = 0;            // of those that came, and that came of them
  std::uint64_t num_steps = 0, computed_tokens = 0;
  double busy_seconds = 0;  // of steps
  Times ttft, itl, e2e;     // of each output
  SchedulerStats scheduler;
};

// What the scheduler would make of these arrivals if each step took so long: the engine's loop, in the time
// of its steps alone.
SimulationResult simulate(const SimulationOptions& options, const Arrivals& arrivals);

}  // namespace quire
