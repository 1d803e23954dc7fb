// The beams of a search: siblings that advance round by round. Elsewhere the scheduler knows that a beam with
// its token is held (book), which is neither planned nor saved nor queued, that it can be stripped where no
// other block is found (make_room, admit_next), and that a search has its precedences set aside
// (add_sequence).
#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {

// A held beam has its result, and needs its blocks only to spare the next round work: its forks can be
// computed again. So each round comes to an end if a single beam fits in the cache. True: one gave them back.
bool Scheduler::strip_held_sibling(const Sequence& sequence) {
  const auto can_be_stripped = [&](const Sequence* other) {
    return other->held && other->request->first_sibling == sequence.request->first_sibling &&
           other->blocks.table.size() > 0;
  };
  const auto found = std::find_if(running_.rbegin(), running_.rend(), can_be_stripped);
  if (found == running_.rend()) return false;
  (*found)->blocks.clear();
  queue_.unblock();
  decide(**found, Decision::Kind::kPreempted, Decision::Why::kBlocks);
  ++counters_.num_preemptions;
  return true;
}

void Scheduler::fork_beams(SequenceId first, std::span<const BeamFork> forks) {
  // They keep their blocks until their forks share them.
  const std::map<SequenceId, Sequence> parents = take_out_beams(first);
  QUIRE_CHECK(!parents.empty() && !forks.empty() &&
              std::ssize(forks) <= parents.begin()->second.request->beam_width);
  for (SequenceId id = first; const BeamFork& fork : forks)
    add_beam(id++, parents.at(fork.parent), fork.token);
  queue_.unblock();
  tell([&](SchedulerObserver& observer) { observer.forked(first, forks); });
}

std::map<SequenceId, Sequence> Scheduler::take_out_beams(SequenceId first) {
  std::map<SequenceId, Sequence> beams;
  auto next = sequences_.lower_bound(first);
  while (next != sequences_.end() && next->second.request->first_sibling == first) {
    Sequence& beam = next->second;
    QUIRE_CHECK(beam.held && beam.num_in_flight == 0 && beam.state != SequenceState::kRetiring,
                "beam {} has no result", next->first);
    QUIRE_CHECK(beam.blocks.saved.blocks.empty(), "beam {} has saved blocks", next->first);
    if (beam.state == SequenceState::kRunning) {
      std::erase(running_, &beam);
      free_seats_.push_back(std::exchange(beam.seat, -1));
    }
    if (const auto& deadline = beam.request->deadline) deadlines_.erase({*deadline, next->first});
    beams.insert(sequences_.extract(next++));
  }
  return beams;
}

// It runs at once if its parent's blocks are there and a seat is free; else it waits, as after a preemption.
void Scheduler::add_beam(SequenceId id, const Sequence& parent, TokenId token) {
  Sequence forked = parent;
  forked.id = id;
  forked.arrival += id - parent.id;  // reserved when the search was added
  forked.append(token);
  forked.state = SequenceState::kWaiting;
  forked.held = forked.started = forked.has_sampled = false;
  QUIRE_CHECK(!forked.complete(), "beam {} cannot go on", id);
  Sequence& beam = sequences_.emplace(id, std::move(forked)).first->second;
  if (const auto& deadline = beam.request->deadline) deadlines_.emplace(*deadline, id);
  if (beam.num_planned() > 0 && !free_seats_.empty() && cache_.fork_states(beam.blocks))
    return start_running(beam);
  beam.blocks.clear();
  queue_.push(beam);
}

}  // namespace quire
