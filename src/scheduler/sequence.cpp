#include "scheduler/sequence.h"

#include <algorithm>

namespace quire {
namespace {

// What a span yields that ends with the sequence's last token (`ends_text`) or before.
OutputKind output_of(const Sequence& sequence, bool ends_text) {
  const OutputKind wanted = sequence.prompt_output();
  if (adds_up(wanted) && !ends_text) return OutputKind::kHiddenSum;
  const int first = sequence.num_planned();
  if (of_every_position(wanted) && first >= sequence.num_prompt_logits && first < sequence.num_prompt)
    return wanted;
  if (!ends_text) return OutputKind::kNone;
  return sequence.is_pooled() ? wanted : OutputKind::kLast;
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  constexpr std::string_view kNames[] = {"", "stop", "length", "abort", "timeout", "error"};
  return kNames[static_cast<std::size_t>(reason)];
}

int Sequence::span_limit(std::uint64_t step) const {
  // What follows in a beam depends on a token that is still in flight.
  if (yielding || held || complete() || (is_beam() && num_pending > 0)) return 0;
  // What it was forked from may be written in that very step.
  if (!started && prompt_step >= step) return 0;
  int last = length();
  if (of_every_position(prompt_output())) {
    // A span has one kind of output; what was handed out before a preemption is not wanted again.
    for (const int border : {num_prompt_logits, num_prompt})
      if (num_planned() < border) last = std::min(last, border);
  }
  return last - num_planned();
}

SequencePlan Sequence::plan_span(int num_tokens) const {
  SequencePlan plan;
  plan.sequence = id;
  plan.seat = seat;
  if (!started) {
    plan.start = request->sampling;
    plan.start->seed += static_cast<std::uint64_t>(index);
    if (plan.start->needs_history()) {
      plan.history.assign(tokens().begin(), tokens().end());
      plan.num_prompt = num_prompt;
    }
  }
  plan.first_position = num_planned();
  plan.num_tokens = num_tokens;
  const int last = num_planned() + num_tokens;
  if (!has_sampled || num_unplanned() > 1)
    plan.tokens.assign(tokens().begin() + num_planned(), tokens().begin() + last);
  const bool ends_text = last == length();
  plan.sample = ends_text && !is_pooled();
  plan.constrained = plan.sample && request->make_constraint;
  plan.mask_stop = plan.sample && num_output() < request->min_tokens;
  plan.output = output_of(*this, ends_text);
  if (plan.output == OutputKind::kLogprobs && last < num_prompt) plan.next_token = tokens()[last];
  return plan;
}

FinishReason Sequence::finish_reason() const {
  const auto num_known = static_cast<int>(tokens().size());
  const auto& stop_ids = request->sampling.stop_ids;
  if (num_known - num_prompt > request->min_tokens &&
      std::ranges::find(stop_ids, tokens().back()) != stop_ids.end())
    return FinishReason::kStop;
  return num_known == max_length ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace quire
