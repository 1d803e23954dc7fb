#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"

namespace quire {

// Finds out, on threads of its own, which tokens the constrained sequences of a step may have, while the
// device computes that step. Costs nothing before the first of them. Thread contract: one thread.
class StepMasker {
 public:
  struct Row {
    SequenceId id = 0;
    std::optional<ConstrainedOutput> output = {};  // none: the sequence has ended
    bool has_mask = false;
    std::vector<TokenId> forced = {};  // as Constraint::forced
    std::string error = {};            // why the sequence cannot go on
  };

  explicit StepMasker(std::int64_t vocab_size) : words_(StepMasks::words(vocab_size)) {}
  ~StepMasker();
  StepMasker(const StepMasker&) = delete;
  StepMasker& operator=(const StepMasker&) = delete;

  // The constrained sequences of a plan, if there are any, that will be submitted.
  void take(const StepPlan& plan);
  bool pending() const { return !ids_.empty(); }
  // Their tokens are known. They must stay as they are until finish or drop.
  void start(Scheduler& scheduler);
  // Waits. What has come of each, in order; and then the masks, until the next start.
  std::vector<Row> finish();
  std::shared_ptr<const StepMasks> masks() const { return masks_; }
  void drop();
  // From start until all were there, of the last step.
  double seconds() const { return seconds_; }

 private:
  void work();
  void take_rows(std::unique_lock<std::mutex>& lock);
  void compute(Row& row, std::size_t place);

  const std::int64_t words_;  // of a mask
  std::vector<SequenceId> ids_;
  std::shared_ptr<StepMasks> masks_ = std::make_shared<StepMasks>();
  TimePoint start_, end_;  // the latter guarded by mutex_
  double seconds_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<Row> rows_;       // guarded by mutex_ where there is no work; else each is its worker's
  std::size_t next_ = 0;        // guarded by mutex_: rows from here on are not begun
  std::size_t unfinished_ = 0;  // guarded by mutex_
  bool closing_ = false;        // guarded by mutex_
  std::vector<std::thread> workers_;
};

}  // namespace quire
