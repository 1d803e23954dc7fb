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
  // Rows of hidden states on their way to the host.
  struct HostRows {
    Buffer memory;
    Tensor rows;                         // [max_output_rows, hidden_size], in that
    std::vector<std::size_t> sequences;  // of last positions: entries of the result
  };

  Pooler(Device& device, const RuntimeConfig& config);
  HostRows make_rows() const;

  // Of a span that is pooled, with its hidden states [num_tokens, hidden_size]. Queues a last position's
  // copy, or waits for what is added up. A sum begins with position 0.
  void add(const SequencePlan& span, const Tensor& hidden, std::size_t sequence, HostRows& last,
           StepResult& result);
  // The last positions, once the step is done.
  void read(const HostRows& last, StepResult& result) const;

 private:
  struct Sum {
    std::vector<double> values;
    int num_positions = 0;
  };

  Device& device_;
  const RuntimeConfig& config_;
  HostRows window_;        // of what is added up
  std::vector<Sum> sums_;  // by seat
};

// Says what was pooled. What is not finite is no answer.
void answer_with(std::vector<float> hidden, SequenceResult& result);

}  // namespace quire
