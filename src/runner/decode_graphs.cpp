#include "runner/decode_graphs.h"

#include <algorithm>

namespace quire {
namespace {

// The attention of few sequences that are short may be another kernel's (Backend::self_attention): steps of
// up to so many have a graph for short ones, too.
constexpr int kFewRows = 16;
constexpr int kShortLen = 2048;  // what CUDA's cluster_attention takes

}  // namespace

std::vector<StepBounds> graph_bounds(const StepBounds& largest) {
  // Each number where a step is short and padding would show, then coarser.
  const auto step_after = [](int rows) { return rows < 16 ? 1 : rows < 64 ? 8 : rows < 256 ? 16 : 32; };
  std::vector<StepBounds> all;
  for (int rows = 1;; rows = std::min(rows + step_after(rows), largest.rows)) {
    if (rows <= kFewRows && kShortLen < largest.seq_len) all.push_back({rows, kShortLen});
    all.push_back({rows, largest.seq_len});
    if (rows == largest.rows) return all;
  }
}

const DecodeGraph* find_graph(std::span<const DecodeGraph> graphs, const StepPlan& plan) {
  const auto plain = [](const SequencePlan& s) {
    return s.num_tokens == 1 && !is_pooled(s.output) && s.output != OutputKind::kLogprobs;
  };
  if (!std::ranges::all_of(plan.sequences, plain)) return nullptr;
  int longest = 0;
  for (const SequencePlan& s : plan.sequences) longest = std::max(longest, s.first_position + s.num_tokens);
  const auto found = std::ranges::find_if(graphs, [&](const DecodeGraph& graph) {
    return graph.bounds.rows >= std::ssize(plan.sequences) && graph.bounds.seq_len >= longest;
  });
  return found == graphs.end() ? nullptr : &*found;
}

}  // namespace quire
