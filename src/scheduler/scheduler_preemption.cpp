// What becomes of a sequence that has to give its blocks up.
#include <algorithm>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {

void Scheduler::preempt_last() {
  Sequence& sequence = *running_.back();
  QUIRE_CHECK(sequence.num_in_flight == 0);
  running_.pop_back();
  // Where nothing was planned of it, what is saved is still all there is. A held beam has had its blocks'
  // use. A sum of hidden states is begun anew with its sequence.
  if (sequence.started && !sequence.held && !adds_up(sequence.prompt_output())) save_blocks(sequence);
  give_back(sequence);
  sequence.state = sequence.held ? SequenceState::kParked : SequenceState::kWaiting;
  if (!sequence.held) enqueue(sequence);
  sequence.yielding = sequence.has_sampled = sequence.started = false;
  sequence.num_planned = 0;
  sequence.prompt_step = 0;
  ++num_preemptions_;
}

// The blocks behind those that others hold as well, if host memory has room for all of them; all blocks of a
// sequence that may share none, or that could not reach them through the prefix cache: it has given back
// those before. The pool may give them away at once: the next step saves before it does anything else.
void Scheduler::save_blocks(Sequence& sequence) {
  const CacheLayout& layout = config_.layout;
  const BlockTable& table = sequence.table;
  const auto is_own = [this](BlockId block) { return block != kNoBlock && pool_.ref_count(block) == 1; };
  const bool saves_all =
      of_every_position(sequence.prompt_output()) || layout.leaves_rows(0, table.position());
  int first = layout.num_outside_all(table.position());
  while (!saves_all && first < table.size() &&
         std::none_of(table.row(first).begin(), table.row(first).end(), is_own))
    ++first;
  const auto blocks = table.blocks().subspan(static_cast<std::size_t>(first) * layout.windows.size());
  const auto num_blocks =
      static_cast<int>(std::ssize(blocks) - std::count(blocks.begin(), blocks.end(), kNoBlock));
  const int num_before = saves_all ? 0 : first * layout.block_size;
  if (sequence.num_planned <= num_before || num_blocks > host_pool_.num_free() ||
      !config_.preemption.saving_pays(num_before, sequence.num_planned - num_before, num_blocks))
    return;
  sequence.saved = {first, sequence.num_planned, {}};
  for (const BlockId block : blocks) {
    sequence.saved.blocks.push_back(block == kNoBlock ? kNoBlock : host_pool_.allocate());
    if (block != kNoBlock) saves_.push_back({block, sequence.saved.blocks.back()});
  }
  num_saved_blocks_ += static_cast<std::uint64_t>(num_blocks);
}

// With the first step of a sequence that was admitted with saved blocks.
void Scheduler::restore_blocks(Sequence& sequence, OpenPlan& open) {
  const SavedBlocks& saved = sequence.saved;
  if (saved.blocks.empty()) return;
  std::vector<BlockCopy>& restores = open.plan.restores;
  restores.reserve(restores.size() + saved.blocks.size());
  // Behind this nothing fails.
  open_step_.restored.reserve(open_step_.restored.size() + saved.blocks.size());
  const auto to =
      sequence.table.blocks().subspan(static_cast<std::size_t>(saved.first) * config_.layout.windows.size());
  for (std::size_t i = 0; i < saved.blocks.size(); ++i) {
    if (saved.blocks[i] == kNoBlock) continue;
    restores.push_back({saved.blocks[i], to[i]});
    open_step_.restored.push_back(saved.blocks[i]);
    ++num_restored_blocks_;
  }
  sequence.saved = {};
  sequence.prompt_step = last_plan_ + 1;  // copies within the cache come before: no fork before the next step
}

// Gives back what is saved but for the last num_kept rows. What was still to be saved there is not.
void Scheduler::forget_saved(SavedBlocks& saved, int num_kept) {
  const int num_lanes = config_.layout.num_lanes();
  const auto end = saved.blocks.end() - num_kept * num_lanes;
  saved.first += static_cast<int>(end - saved.blocks.begin()) / num_lanes;
  for (auto block = saved.blocks.begin(); block != end; ++block)
    if (*block != kNoBlock) host_pool_.release(*block);
  if (end != saved.blocks.begin())
    std::erase_if(saves_, [this](const BlockCopy& save) { return host_pool_.ref_count(save.to) == 0; });
  saved.blocks.erase(saved.blocks.begin(), end);
  if (saved.blocks.empty()) saved = {};
}

}  // namespace quire
