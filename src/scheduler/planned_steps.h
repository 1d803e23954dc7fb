#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace quire {

// The open step, whose plan is in the making, and the steps in flight. It books in each sequence what of it
// is planned.
class PlannedSteps {
 public:
  // What a step computes of a sequence.
  struct Span {
    Sequence* sequence;
    int num_tokens;
    int last;  // the position behind them
    OutputKind output;
    bool ends_text;            // its last position is the sequence's: there is a sample, or what is pooled
    bool is_foreseen = false;  // what is sampled is known already, and was booked
  };

  // Begins a plan of that many sequences at most.
  void open(std::size_t most);
  StepPlan& plan() { return plan_; }
  std::uint64_t id() const { return last_id_ + 1; }  // of the open step
  // Takes a span into the open step. Nothing fails.
  void add(Sequence& sequence, SequencePlan plan);
  const std::vector<Span>& spans() const { return open_; }  // of the open step
  // The open step is in flight.
  StepPlan close();

  // What the newest step samples of the sequence, which is in it, is known.
  void foresee(Sequence& sequence);

  // Takes the oldest step out of flight. InternalError, and nothing changes, if `result` is another step's.
  std::vector<Span> take_oldest(const StepResult& result);
  // All steps are lost. Returns their sequences, as often as each was in one.
  std::vector<SequenceId> drop();
  int num_in_flight() const { return static_cast<int>(in_flight_.size()); }

  // What a sequence has in flight.
  struct InFlight {
    int num_steps = 0, num_tokens = 0, num_pending = 0;
  };
  // Of all that have. Throws InternalError if a step has more of either.
  std::map<const Sequence*, InFlight> check(int max_tokens, int max_sequences) const;

 private:
  StepPlan plan_;  // of the open step
  std::vector<Span> open_;
  std::deque<std::vector<Span>> in_flight_;  // by step, the oldest first; their ids follow each other
  std::uint64_t last_id_ = 0;                // of the newest
};

}  // namespace quire
