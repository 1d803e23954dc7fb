#include "scheduler/planned_steps.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// Whether the token is what the plan has asked for.
bool is_answer(const PlannedSteps::Span& span, TokenId token) {
  if (span.is_foreseen) return true;
  if (span.ends_text && (token == SequenceResult::kInvalidLogits || token == SequenceResult::kNoneLeft))
    return true;
  return span.ends_text && !is_pooled(span.output) ? token >= 0 : token == SequenceResult::kNoToken;
}

}  // namespace

void PlannedSteps::open(std::size_t most) {
  QUIRE_CHECK(open_.empty(), "a step that failed was not dropped");
  plan_ = {};
  plan_.sequences.reserve(most);
  open_.reserve(most);
}

void PlannedSteps::add(Sequence& sequence, SequencePlan plan) {
  const int last = plan.first_position + plan.num_tokens;
  const bool ends_text = last == sequence.length();
  sequence.started = true;
  if (plan.first_position < sequence.num_prompt && last >= sequence.num_prompt) sequence.prompt_step = id();
  sequence.blocks.num_tokens = last;
  ++sequence.num_in_flight;
  sequence.num_pending += ends_text ? 1 : 0;
  sequence.has_sampled |= plan.sample;
  open_.push_back({&sequence, plan.num_tokens, last, plan.output, ends_text});
  plan_.num_tokens += plan.num_tokens;
  plan_.sequences.push_back(std::move(plan));
}

StepPlan PlannedSteps::close() {
  in_flight_.emplace_back();  // the last that may fail
  plan_.id = ++last_id_;
  in_flight_.back() = std::exchange(open_, {});
  return std::exchange(plan_, {});
}

void PlannedSteps::foresee(Sequence& sequence) {
  QUIRE_CHECK(!in_flight_.empty(), "sequence {} is foreseen, and no step is in flight", sequence.id);
  const auto span = std::ranges::find(in_flight_.back(), &sequence, &Span::sequence);
  QUIRE_CHECK(span != in_flight_.back().end() && span->ends_text && sequence.num_pending == 1);
  span->ends_text = false;
  span->is_foreseen = true;
  sequence.num_pending = 0;
  sequence.has_sampled = false;  // the seat's last sample is not the last token
}

std::vector<PlannedSteps::Span> PlannedSteps::take_oldest(const StepResult& result) {
  QUIRE_CHECK(!in_flight_.empty() && result.id == last_id_ + 1 - in_flight_.size(),
              "result {} is not the oldest's", result.id);
  const std::vector<Span>& expected = in_flight_.front();
  QUIRE_CHECK(result.sequences.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    QUIRE_CHECK(result.sequences[i].sequence == expected[i].sequence->id);
    QUIRE_CHECK(is_answer(expected[i], result.sequences[i].token));
  }
  std::vector<Span> spans = std::move(in_flight_.front());
  in_flight_.pop_front();
  for (const Span& span : spans) {
    --span.sequence->num_in_flight;
    span.sequence->num_pending -= span.ends_text ? 1 : 0;
  }
  return spans;
}

std::vector<SequenceId> PlannedSteps::drop() {
  in_flight_.push_back(std::exchange(open_, {}));  // where planning was left in the middle
  plan_ = {};
  std::vector<SequenceId> lost;
  for (const std::vector<Span>& step : in_flight_) {
    for (const Span& span : step) {
      span.sequence->num_in_flight = span.sequence->num_pending = 0;
      lost.push_back(span.sequence->id);
    }
  }
  in_flight_.clear();
  return lost;
}

std::map<const Sequence*, PlannedSteps::InFlight> PlannedSteps::check(int max_tokens,
                                                                      int max_sequences) const {
  std::map<const Sequence*, InFlight> by_sequence;
  for (const std::vector<Span>& step : in_flight_) {
    int num_tokens = 0;
    for (const Span& span : step) {
      num_tokens += span.num_tokens;
      InFlight& of = by_sequence[span.sequence];
      ++of.num_steps;
      of.num_tokens += span.num_tokens;
      of.num_pending += span.ends_text ? 1 : 0;
    }
    QUIRE_CHECK(num_tokens > 0 && num_tokens <= max_tokens, "10: step of {} tokens", num_tokens);
    QUIRE_CHECK(std::ssize(step) <= max_sequences, "10: step of {} sequences", step.size());
  }
  return by_sequence;
}

}  // namespace quire
