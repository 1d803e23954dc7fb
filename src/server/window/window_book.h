#pragma once

#include <deque>
#include <functional>
#include <string_view>

#include "scheduler/scheduler.h"
#include "server/window/window_frame.h"

namespace quire::server {

// Looks on while a scheduler works, and makes frames of it: the same of one that serves and of one that does
// a recording again. Belongs to the scheduler's thread.
class WindowBook final : public SchedulerObserver {
 public:
  static constexpr std::size_t kEndedKept = 48;   // sequences
  static constexpr std::size_t kEventsKept = 40;  // admissions and preemptions
  static constexpr std::int64_t kSecondsKept = 120;
  static constexpr std::size_t kMomentsKept = 64;  // of a sequence's life

  // clock: seconds since the watching began; never less than before.
  explicit WindowBook(std::function<double()> clock) : clock_(std::move(clock)) {}

  // What it looks at, before it is told of anything. It is the scheduler's observer from then on.
  void attach(const Scheduler& scheduler);
  // num_tail: of each sequence the last tokens that the frame has.
  WindowFrame frame(std::size_t num_tail = 0);

  void added(const SequenceRequest& request) override;
  void aborted(SequenceId id) override;
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override;
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override;
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override;
  void forked(SequenceId first, std::span<const BeamFork> forks) override;
  void lost_steps(std::span<const SequenceUpdate> updates) override;

 private:
  using State = WindowSequence::State;
  struct InFlight {
    std::uint64_t id = 0;
    double planned_at = 0;
    int num_tokens = 0;
    std::int64_t num_blocks = 0;
  };
  struct Mean {
    double sum = 0;
    int count = 0;
    void add(double value) { sum += value, ++count; }
    double value() const { return count == 0 ? -1 : sum / count; }
  };

  WindowSequence& begin(SequenceId id, State state);
  void enter(WindowSequence& sequence, State state);
  // Null: it began before the watching, and no frame was made since; or it ended long ago.
  WindowSequence* find(SequenceId id);
  void mark(SequenceId id, State state);
  void end(SequenceId id, std::string_view why);
  void update(const SequenceUpdate& update);
  void follow_scheduler();
  void roll();
  void add_marks(const StepPlan& plan);
  std::int64_t count_blocks(const StepPlan& plan) const;

  std::function<double()> clock_;
  const Scheduler* scheduler_ = nullptr;
  // What a frame has of the past: all but the blocks, and of sequences what the scheduler knows no more.
  WindowFrame kept_;
  std::deque<SequenceId> ended_;    // of which kept_ still tells
  std::deque<InFlight> in_flight_;  // in their order; not those from before the watching
  double applied_at_ = 0;           // the last one
  std::int64_t second_ = 0;         // that runs
  WindowSecond now_;                // what it had so far
  Mean first_token_, between_tokens_;
  SchedulerStats before_;  // when it began
};

}  // namespace quire::server
