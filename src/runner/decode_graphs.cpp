#include "runner/decode_graphs.h"

#include <algorithm>

namespace quire {

void DecodeGraphs::capture(Backend& backend, int max_rows,
                           const std::function<QueueStep(int rows)>& step_of) {
  // Each number where a step is short and padding would show, then coarser.
  const auto step_after = [](int rows) { return rows < 16 ? 1 : rows < 64 ? 8 : rows < 256 ? 16 : 32; };
  for (int rows = 1;; rows = std::min(rows + step_after(rows), max_rows)) {
    const QueueStep queue_step = step_of(rows);
    // As it must be before it is recorded; no sequence has a length.
    const StepOutputs outputs = queue_step();
    // The inputs are written anew for the next one; and while a graph is made, no op may wait for another
    // rank.
    backend.wait(backend.record());
    if (backend.runs_on_host()) return;
    graphs_.push_back({rows, backend.capture(queue_step), outputs});
    if (rows == max_rows) return;
  }
}

const DecodeGraphs::DecodeGraph* DecodeGraphs::find(const StepPlan& plan) const {
  const auto plain = [](const SequencePlan& s) {
    return s.num_tokens == 1 && !is_pooled(s.output) && s.output != OutputKind::kLogprobs;
  };
  if (!std::ranges::all_of(plan.sequences, plain)) return nullptr;
  const auto found = std::ranges::find_if(
      graphs_, [&](const DecodeGraph& graph) { return graph.rows >= std::ssize(plan.sequences); });
  return found == graphs_.end() ? nullptr : &*found;
}

}  // namespace quire
