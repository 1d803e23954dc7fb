#include <algorithm>
#include <map>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {

// The numbers are those of docs/invariants.md.
void Scheduler::check() const {
  check_order();
  steps_.check(config_.max_num_batched_tokens, config_.max_num_seqs);
  std::vector<const SequenceBlocks*> blocks;
  std::vector<bool> taken(static_cast<std::size_t>(config_.max_num_seqs));
  std::size_t num_retiring = 0;
  std::size_t num_parked = 0;
  for (const auto& [id, sequence] : sequences_) {
    check_sequence(sequence);
    blocks.push_back(&sequence.blocks);
    num_parked += sequence.state == SequenceState::kWaiting && sequence.held ? 1 : 0;
    num_retiring += sequence.state == SequenceState::kRetiring ? 1 : 0;
    if (sequence.seat < 0) continue;  // it holds nothing
    const auto seat = static_cast<std::size_t>(sequence.seat);
    QUIRE_CHECK(!taken.at(seat), "10: seat {} is taken twice", seat);
    taken.at(seat) = true;
  }
  cache_.check(blocks);
  QUIRE_CHECK(running_.size() + queue_.size() + num_retiring + num_parked == sequences_.size(), "9");
  QUIRE_CHECK(running_.size() + num_retiring + free_seats_.size() == taken.size(), "10: seats are lost");
}

void Scheduler::check_order() const {
  queue_.check();
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
    QUIRE_CHECK(std::is_sorted(list.begin(), list.end(), Precedes{}), "11: not in order of precedence");
  };
  check_list(running_, SequenceState::kRunning);
  check_list(queue_, SequenceState::kWaiting);
}

void Scheduler::check_sequence(const Sequence& sequence) const {
  const SequenceId id = sequence.id;
  const BlockTable& table = sequence.blocks.table;
  const int num_tokens_in_flight = steps_.check(sequence);
  if (sequence.state == SequenceState::kWaiting)
    QUIRE_CHECK(
        table.size() == 0 && sequence.seat < 0 && sequence.num_in_flight == 0 && !sequence.has_sampled,
        "9: sequence {} waits and holds something", id);
  QUIRE_CHECK(sequence.state != SequenceState::kRetiring || sequence.num_in_flight > 0,
              "6: sequence {} is kept", id);
  QUIRE_CHECK(table.position() == sequence.num_planned() - num_tokens_in_flight,
              "14, 17: sequence {} has given back what lies before position {}", id, table.position());
  QUIRE_CHECK(sequence.max_length - 1 <= longest_alone_, "7: sequence {} cannot end", id);
  if (sequence.state != SequenceState::kRunning) return;
  QUIRE_CHECK(sequence.num_planned() <= sequence.length() && sequence.length() <= sequence.max_length,
              "14: sequence {}", id);
  const int block_size = config_.layout.block_size;
  for (int i = sequence.num_planned() / block_size; i < table.size(); ++i) {
    // The row that the prompt of siblings ends in, and the last one of a beam, is shared until it is
    // written, by way of a copy.
    const bool may_be_shared = sequence.is_beam() || (sequence.request->first_sibling != 0 &&
                                                      i == (sequence.num_prompt - 1) / block_size);
    for (const BlockId block : table.row(i))
      QUIRE_CHECK(may_be_shared || cache_.may_be_written(block),
                  "3: block {} is shared, and sequence {} will write it", block, id);
  }
}

}  // namespace quire
