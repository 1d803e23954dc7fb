#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/search_rounds.h"
#include "ops/device.h"
#include "runner/cache_shape.h"

namespace quire {

// What the engine has done since it started.
struct EngineStats {
  SchedulerStats scheduler;
  std::uint64_t prefill_tokens = 0;  // computed of prompts, and again after a preemption
  std::uint64_t decode_tokens = 0;   // computed one by one, as they were sampled
  double prefill_seconds = 0;        // a step's time is shared by its tokens
  double decode_seconds = 0;
  std::uint64_t broken_invariants = 0;       // that were found (EngineConfig::check_invariants)
  std::size_t structured_outputs_bytes = 0;  // GrammarCompiler::bytes
};

// One step, as it was planned and how long it took.
struct StepRecord {
  std::uint64_t tokens = 0;          // computed
  std::uint64_t prefill_tokens = 0;  // of them: of prompts, and again after a preemption
  std::uint64_t sampled_tokens = 0;
  std::uint64_t attention_pairs = 0;  // (token, token it attends to), with itself; the sum over all layers
  double seconds = 0;                 // from planned to sampled, what it waited for earlier steps apart
  double mask_seconds = 0;            // that the masks of its constrained sequences took; 0: it has none
  std::optional<OpTimes> ops = std::nullopt;  // of a step that was profiled, whose seconds say nothing then
  TimePoint planned = {};                     // where `seconds` begin, unless the step before ended later

  double prefill_share() const {
    return tokens == 0 ? 0 : static_cast<double>(prefill_tokens) / static_cast<double>(tokens);
  }
};

// Keeps a record of each step, adds them up and shows them to an observer. Thread contract: any thread may
// call stats and observe; the engine's thread alone calls the others.
class StepStatistics {
 public:
  using Observer = std::function<void(const StepRecord&)>;

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  // profile_every: one step in so many has its ops timed; 0: none.
  void observe(Observer observer, int profile_every);

  void publish(const SchedulerStats& scheduler) {
    const std::lock_guard lock(mutex_);
    stats_.scheduler = scheduler;
  }
  // Of a step that is to be submitted; without its times.
  static StepRecord describe(const StepPlan& plan, const CacheShape& cache, SearchRounds& beams);
  bool profile_next();  // whether it has its ops timed
  // A step was submitted.
  void begin(StepRecord record) { in_flight_.push_back(std::move(record)); }
  // The masks of the newest one took so long.
  void note_masks(double seconds) { in_flight_.back().mask_seconds = seconds; }
  // The oldest one has ended. What the observer throws is logged.
  void end(const SchedulerStats& scheduler, TimePoint at);
  void drop() { in_flight_.clear(); }

 private:
  std::deque<StepRecord> in_flight_;
  TimePoint last_end_;
  std::uint64_t num_planned_ = 0;  // while there was a profile
  std::atomic<int> profile_every_{0};
  mutable std::mutex mutex_;
  EngineStats stats_;                         // guarded by mutex_
  std::shared_ptr<const Observer> observer_;  // guarded by mutex_
};

}  // namespace quire
