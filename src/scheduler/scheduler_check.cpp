#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {

// The numbers are those of docs/invariants.md.
void Scheduler::check() const {
  pool_.check();          // 1
  prefix_cache_.check();  // 4
  check_order();
  std::vector<int> num_holders(static_cast<std::size_t>(pool_.num_blocks()));
  std::vector<bool> taken(static_cast<std::size_t>(config_.max_num_seqs));
  std::vector<int> num_savers(static_cast<std::size_t>(host_pool_.num_blocks()));
  std::size_t num_retiring = 0;
  std::size_t num_parked = 0;
  for (const auto& [id, sequence] : sequences_) {
    check_sequence(sequence);
    num_parked += sequence.state == SequenceState::kParked ? 1 : 0;
    num_retiring += sequence.state == SequenceState::kRetiring ? 1 : 0;
    for (const BlockId block : sequence.table.held()) ++num_holders.at(static_cast<std::size_t>(block));
    for (const BlockId block : sequence.saved.blocks)
      if (block != kNoBlock) ++num_savers.at(static_cast<std::size_t>(block));
    if (sequence.seat < 0) continue;  // it holds nothing
    const auto seat = static_cast<std::size_t>(sequence.seat);
    QUIRE_CHECK(!taken.at(seat), "10: seat {} is taken twice", seat);
    taken.at(seat) = true;
  }
  for (const PlannedStep& step : in_flight_)
    for (const BlockId block : step.replaced) ++num_holders.at(static_cast<std::size_t>(block));
  for (BlockId block = 0; block < pool_.num_blocks(); ++block)
    QUIRE_CHECK(pool_.ref_count(block) == num_holders[static_cast<std::size_t>(block)],
                "2: block {} has {} references", block, pool_.ref_count(block));
  host_pool_.check();
  std::set<BlockId> targets;
  for (const BlockCopy& save : saves_)
    QUIRE_CHECK(host_pool_.ref_count(save.to) == 1 && targets.insert(save.to).second,
                "16: block {} of host memory is saved to for nobody, or twice", save.to);
  for (BlockId block = 0; block < host_pool_.num_blocks(); ++block) {
    const int num_references = host_pool_.ref_count(block);
    QUIRE_CHECK(num_references <= 1 && num_references == num_savers[static_cast<std::size_t>(block)],
                "16: block {} of host memory has {} references", block, num_references);
  }
  QUIRE_CHECK(running_.size() + waiting_.size() + num_retiring + num_parked == sequences_.size(), "9");
  QUIRE_CHECK(running_.size() + num_retiring + free_seats_.size() == taken.size(), "10: seats are lost");
}

void Scheduler::check_order() const {
  std::map<int, std::uint64_t> newest;  // arrival, by priority: of those running, then of those waiting
  const auto check_list = [&](const auto& list, SequenceState state) {
    for (const Sequence* sequence : list) {
      const SequenceId id = sequence->id;
      QUIRE_CHECK(sequence->state == state, "9: sequence {} is in a wrong list", id);
      // A beam may have to wait for blocks while what came after its search runs.
      const bool may_be_late = sequence->is_beam() && state == SequenceState::kWaiting;
      std::uint64_t& newest_one = newest[sequence->priority];
      QUIRE_CHECK(may_be_late || sequence->arrival > newest_one, "11: sequence {} lost its place", id);
      newest_one = std::max(newest_one, sequence->arrival);
      // Only the last running one may have to yield, or it would not be the next to be preempted.
      QUIRE_CHECK(!sequence->yielding || sequence == running_.back(), "11");
    }
  };
  check_list(running_, SequenceState::kRunning);
  check_list(waiting_, SequenceState::kWaiting);
  QUIRE_CHECK(std::is_sorted(running_.begin(), running_.end(), Precedes{}) &&
                  std::is_sorted(waiting_.begin(), waiting_.end(), Precedes{}),
              "11: not in order of precedence");
  for (const PlannedStep& step : in_flight_) {
    int num_tokens = 0;
    for (const PlannedSequence& planned : step.sequences) num_tokens += planned.num_tokens;
    QUIRE_CHECK(num_tokens > 0 && num_tokens <= config_.max_num_batched_tokens, "10: step of {} tokens",
                num_tokens);
    QUIRE_CHECK(static_cast<int>(step.sequences.size()) <= config_.max_num_seqs, "10");
  }
}

void Scheduler::check_sequence(const Sequence& sequence) const {
  const SequenceId id = sequence.id;
  int num_in_flight = 0;
  int num_tokens_in_flight = 0;
  int num_pending = 0;
  for (const PlannedStep& step : in_flight_) {
    for (const PlannedSequence& planned : step.sequences) {
      if (planned.sequence != &sequence) continue;
      ++num_in_flight;
      num_tokens_in_flight += planned.num_tokens;
      num_pending += planned.ends_text ? 1 : 0;
    }
  }
  QUIRE_CHECK(sequence.num_in_flight == num_in_flight && sequence.num_pending == num_pending,
              "14: sequence {} counts {} steps and {} samples in flight, there are {} and {}", id,
              sequence.num_in_flight, sequence.num_pending, num_in_flight, num_pending);
  QUIRE_CHECK(sequence.num_planned >= num_tokens_in_flight, "14: sequence {}", id);
  if (sequence.state == SequenceState::kWaiting || sequence.state == SequenceState::kParked) {
    QUIRE_CHECK(
        sequence.table.size() == 0 && sequence.seat < 0 && num_in_flight == 0 && !sequence.has_sampled,
        "9: sequence {} waits and holds something", id);
    QUIRE_CHECK(sequence.held == (sequence.state == SequenceState::kParked), "9: sequence {}", id);
  }
  QUIRE_CHECK(sequence.state != SequenceState::kRetiring || num_in_flight > 0, "6: sequence {} is kept", id);
  QUIRE_CHECK(sequence.table.size() == config_.layout.rows_for(sequence.num_planned),
              "5, 6: sequence {} has {} rows", id, sequence.table.size());
  QUIRE_CHECK(sequence.table.position() == sequence.num_planned - num_tokens_in_flight &&
                  sequence.table.num_held() == std::ssize(sequence.table.held()),
              "17: sequence {} has given back what lies before position {}", id, sequence.table.position());
  QUIRE_CHECK(sequence.max_length - 1 <= longest_alone_, "7: sequence {} cannot end", id);
  if (sequence.state != SequenceState::kRunning) return;
  QUIRE_CHECK(sequence.num_planned <= sequence.length() && sequence.length() <= sequence.max_length,
              "14: sequence {}", id);
  const int num_full = sequence.num_planned / config_.layout.block_size;
  QUIRE_CHECK(sequence.num_indexed <= num_full, "4: sequence {}", id);
  for (int i = num_full; i < sequence.table.size(); ++i) {
    // The row that the prompt of siblings ends in, and the last one of a beam, is shared until it is
    // written, by way of a copy.
    const bool may_be_shared =
        sequence.is_beam() ||
        (sequence.request->first_sibling != 0 && i == (sequence.num_prompt - 1) / config_.layout.block_size);
    for (const BlockId block : sequence.table.row(i))
      QUIRE_CHECK(may_be_shared || (pool_.ref_count(block) == 1 && !prefix_cache_.contains(block)),
                  "3: block {} is shared, and sequence {} will write it", block, id);
  }
}

}  // namespace quire
