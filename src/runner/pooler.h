#pragma once

#include <vector>

#include "runner/runtime_config.h"
#include "scheduler/step_plan.h"

namespace quire {

// What is made of hidden states for pooled requests: the last position's, or the mean of all positions. They
// are added up span by span: on the host, in float64, position by position, so that a sum does not depend on
// where its prompt was cut.
class Pooler {
 public:
  // Last positions of one step, on their way to the host.
  struct LastRows {
    Buffer memory;                       // [max_output_rows, hidden_size] on the host
    Tensor rows;                         // the same
    std::vector<std::size_t> sequences;  // entries of the result, by row
  };

  Pooler(Device& device, const RuntimeConfig& config);
  LastRows make_rows() const;

  // Of a span that is pooled, with its hidden states [num_tokens, hidden_size]. Queues a last position's
  // copy, or waits for what is added up. A sum begins with position 0.
  void add(const SequencePlan& span, const Tensor& hidden, std::size_t sequence, LastRows& last,
           StepResult& result);
  // The last positions, once the step is done.
  void read(const LastRows& last, StepResult& result) const;

 private:
  struct Sum {
    std::vector<double> values;
    int num_positions = 0;
  };

  Device& device_;
  const RuntimeConfig& config_;
  LastRows window_;        // rows on their way into a sum
  std::vector<Sum> sums_;  // by seat
};

}  // namespace quire
