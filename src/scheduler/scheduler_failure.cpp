// What becomes of the sequences whose steps the runner has lost.
#include <algorithm>
#include <utility>

#include "scheduler/scheduler.h"

namespace quire {

SequenceUpdate Scheduler::error_update(const Sequence& sequence) {
  SequenceUpdate update;
  update.id = sequence.id;
  update.finish = FinishReason::kError;
  update.num_cached_tokens = sequence.num_cached_tokens;
  return update;
}

std::vector<SequenceUpdate> Scheduler::fail_in_flight() {
  in_flight_.push_back(std::exchange(open_step_, {}));  // where planning was left in the middle
  std::vector<SequenceId> lost;
  for (PlannedStep& step : in_flight_) {
    for (const PlannedSequence& planned : step.sequences) lost.push_back(planned.sequence->id);
    release_replaced(step);
    for (const BlockId block : step.restored) host_pool_.release(block);
  }
  in_flight_.clear();
  prefix_cache_.clear();
  // Nor need what was to be saved have been.
  for (auto& [id, sequence] : sequences_) forget_saved(sequence.saved, 0);
  saves_.clear();
  std::vector<SequenceUpdate> updates;
  for (const SequenceId id : lost) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;  // it was in several steps
    Sequence& sequence = found->second;
    sequence.num_in_flight = sequence.num_pending = 0;
    const bool was_alone = sequence.suspect && lost.size() == 1;
    if (was_alone && sequence.state == SequenceState::kRunning) updates.push_back(error_update(sequence));
    if (was_alone || sequence.state == SequenceState::kRetiring) {
      end(sequence);
      continue;
    }
    sequence.suspect = true;
    sequence.started = false;  // what it holds may never have been written
  }
  // Nor may the blocks of a sibling that a fork stands on.
  const auto started = [](const Sequence* sequence) { return sequence->started; };
  while (!std::all_of(running_.begin(), running_.end(), started)) preempt_last();
  return updates;
}

std::vector<SequenceUpdate> Scheduler::fail_all() {
  std::vector<SequenceUpdate> updates = fail_in_flight();
  std::vector<SequenceId> left;
  for (const auto& [id, sequence] : sequences_) left.push_back(id);
  for (const SequenceId id : left) {
    if (!abort(id)) continue;
    SequenceUpdate& update = updates.emplace_back();
    update.id = id;
    update.finish = FinishReason::kError;
  }
  return updates;
}

}  // namespace quire
