#pragma once

#include <vector>

#include "runner/runtime_config.h"
#include "scheduler/step_plan.h"

namespace quire {

// Adds up the hidden states of prompts, span by span: on the host, in float64, position by position, so that
// a sum does not depend on where its prompt was cut.
class HiddenSums {
 public:
  HiddenSums(Device& device, const RuntimeConfig& config);

  // Adds a span's hidden states [num_tokens, hidden_size], for which it waits. A sum begins with position 0.
  void add(const SequencePlan& span, const Tensor& hidden);
  // Of all that was added for the seat; ends it.
  std::vector<float> take_mean(int seat);

 private:
  struct Sum {
    std::vector<double> values;
    int num_positions = 0;
  };

  Device& device_;
  Buffer window_;          // [max_output_rows, hidden_size] on the host: rows on their way
  Tensor rows_;            // the same
  std::vector<Sum> sums_;  // by seat
};

}  // namespace quire
