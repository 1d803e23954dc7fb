#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "inspect/workload.h"
#include "record/recording.h"

namespace quire {

// What comes to a simulated engine from outside, and when.
struct Arrival {
  double seconds = 0;                              // from the start
  std::shared_ptr<const SequenceRequest> request;  // null: `aborted` ends
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

}  // namespace quire
