#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "ops/ops.h"
#include "scheduler/step_plan.h"

namespace quire {

// Notices that the engine's thread is stuck in a step: no step has begun or ended, and no op was called, for
// longer than one can take. Time in which this process did not run does not count. A thread of its own looks.
// Thread contract: the engine's thread calls what is told of steps, any thread what is asked.
class StepWatch {
 public:
  // watchdog: seconds, EngineConfig's; Error where it is not over 0. stuck: called once, on the watch's
  // thread, with what is known of the step. backend: outlives this.
  StepWatch(const Backend& backend, double watchdog, std::function<void(const std::string&)> stuck);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Between the two something is to happen.
  void begin_turn() { turn_.fetch_add(1, std::memory_order_relaxed); }
  void end_turn() { turn_.fetch_add(1, std::memory_order_relaxed); }
  void submit(const StepPlan& plan);
  // Of them the oldest.
  void collect(int num_in_flight) { awaited_ = newest_ + 1 - static_cast<std::uint64_t>(num_in_flight); }
  void engine_ends();  // its thread

  bool is_stuck() const { return stuck_.load(); }
  // Waits a second at most for a stuck thread. Whether it has ended.
  bool wait_ended();

 private:
  static constexpr int kStuck = 12;          // times `watchdog`
  static constexpr int kTokensAtOnce = 256;  // that a CPU computes: as long again for each so many

  void run();
  double patience() const;
  std::string describe() const;

  const Backend& backend_;
  const double watchdog_;
  const std::function<void(const std::string&)> tell_;
  std::atomic<std::uint64_t> turn_{0};    // odd: the engine is at work
  std::atomic<std::uint64_t> newest_{0};  // step that was submitted last
  std::atomic<int> num_tokens_{0};        // of it
  std::atomic<int> num_sequences_{0};
  std::atomic<std::uint64_t> awaited_{0};  // step that is waited for; 0: one is planned or submitted
  std::atomic<bool> stuck_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;  // guarded by mutex_
  bool ended_ = false;    // guarded by mutex_: the engine's thread has
  std::thread thread_;
};

}  // namespace quire
