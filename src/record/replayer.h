#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "record/event_codec.h"

namespace quire {

// A plan as text, a line for each sequence, decision and copy.
std::string to_text(const StepPlan& plan);
// What a scheduler has just now: who runs and who waits, with their blocks, and what is free.
std::string to_text(const Scheduler& scheduler);

// Does what a recording says with a scheduler of its own, and compares plan by plan.
class Replayer : public SchedulerObserver {
 public:
  struct Difference {
    std::uint64_t step = 0;  // the last one that was planned before, or the one that differs
    std::string what;
    std::string recorded, replayed;  // the plans, where they are what differs
  };

  // config: as the recording has it. observers: of the scheduler.
  explicit Replayer(SchedulerConfig config);

  const Scheduler& scheduler() const { return scheduler_; }
  std::uint64_t step() const { return step_; }                   // the last one planned
  const std::optional<StepPlan>& plan() const { return plan_; }  // what `planned` was last answered with
  std::uint64_t num_requests() const { return num_requests_; }
  std::uint64_t num_tokens() const { return num_tokens_; }  // computed
  const std::optional<Difference>& difference() const { return difference_; }

  // Nothing is done any more once there is a difference.
  void added(const SequenceRequest& request) override;
  void aborted(SequenceId id) override;
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override;
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override;
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override;
  void forked(SequenceId first, std::span<const BeamFork> forks) override;
  void lost_steps(std::span<const SequenceUpdate> updates) override;

 private:
  template <typename Work>
  void guarded(const Work& work);
  void differ(std::string what) { difference_ = {step_, std::move(what), {}, {}}; }
  void compare_ends(std::span<const SequenceUpdate> recorded, std::span<const SequenceUpdate> replayed);

  std::set<SequenceId> failing_;  // whose planning failed
  Scheduler scheduler_;
  std::optional<StepPlan> plan_;
  std::uint64_t step_ = 0, applied_ = 0, num_requests_ = 0, num_tokens_ = 0;
  std::optional<Difference> difference_;
};

}  // namespace quire
