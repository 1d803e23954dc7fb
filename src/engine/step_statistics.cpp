#include "engine/step_statistics.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"

namespace quire {

void StepStatistics::observe(Observer observer, int profile_every) {
  profile_every_ = profile_every;
  auto shared = observer ? std::make_shared<const Observer>(std::move(observer)) : nullptr;
  const std::lock_guard lock(mutex_);
  observer_ = std::move(shared);
}

StepRecord StepStatistics::describe(const StepPlan& plan, const CacheShape& cache, SearchRounds& beams) {
  StepRecord record{.tokens = static_cast<std::uint64_t>(plan.num_tokens)};
  for (const SequencePlan& sequence : plan.sequences) {
    const auto tokens = static_cast<std::uint64_t>(sequence.num_tokens);
    const bool is_given = !sequence.tokens.empty();  // as prompts are, and the tokens of beams
    if (is_given && !(tokens == 1 && beams.contains(sequence.sequence))) record.prefill_tokens += tokens;
    if (sequence.sample) ++record.sampled_tokens;
    for (std::size_t lane = 0; lane < cache.lanes.size(); ++lane)
      record.attention_pairs +=
          static_cast<std::uint64_t>(cache.lanes[lane].num_layers) *
          cache.layout.attention_pairs(static_cast<int>(lane), sequence.first_position, sequence.num_tokens);
  }
  return record;
}

bool StepStatistics::profile_next() {
  const int every = profile_every_;
  return every > 0 && num_planned_++ % static_cast<std::uint64_t>(every) == 0;
}

void StepStatistics::end(const SchedulerStats& scheduler, TimePoint at) {
  StepRecord record = std::move(in_flight_.front());
  const TimePoint start = std::max(record.planned, std::exchange(last_end_, at));
  record.seconds = std::chrono::duration<double>(at - start).count();
  in_flight_.pop_front();
  const double prefill = record.seconds * record.prefill_share();
  std::shared_ptr<const Observer> observer;
  {
    const std::lock_guard lock(mutex_);
    stats_.scheduler = scheduler;
    stats_.prefill_tokens += record.prefill_tokens;
    stats_.decode_tokens += record.tokens - record.prefill_tokens;
    stats_.prefill_seconds += prefill;
    stats_.decode_seconds += record.seconds - prefill;
    observer = observer_;
  }
  try {
    if (observer) (*observer)(record);
  } catch (const std::exception& e) {
    log_error("a step's observer failed: {}", e.what());
  }
}

}  // namespace quire
