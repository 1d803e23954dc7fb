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
  const auto blocks = sequence.table.held();
  const auto is_own = [this](BlockId block) { return pool_.ref_count(block) == 1; };
  const bool saves_all = of_every_position(sequence.prompt_output()) || sequence.table.num_released() > 0;
  const auto first = saves_all ? blocks.begin() : std::find_if(blocks.begin(), blocks.end(), is_own);
  const auto num_blocks = static_cast<int>(blocks.end() - first);
  const auto num_shared = static_cast<int>(first - blocks.begin());
  const int num_before = num_shared * config_.block_size;
  if (sequence.num_planned <= num_before || num_blocks > host_pool_.num_free() ||
      !config_.preemption.saving_pays(num_before, sequence.num_planned - num_before, num_blocks))
    return;
  sequence.saved = {sequence.table.num_released() + num_shared, sequence.num_planned, {}};
  for (auto block = first; block != blocks.end(); ++block) {
    const BlockId to = host_pool_.allocate();
    saves_.push_back({*block, to});
    sequence.saved.blocks.push_back(to);
  }
  num_saved_blocks_ += static_cast<std::uint64_t>(num_blocks);
}

// With the first step of a sequence that was admitted with saved blocks.
void Scheduler::restore_blocks(Sequence& sequence, Draft& draft) {
  const SavedBlocks& saved = sequence.saved;
  if (saved.blocks.empty()) return;
  std::vector<BlockCopy>& restores = draft.plan.restores;
  restores.reserve(restores.size() + saved.blocks.size());
  drafted_.restored.reserve(drafted_.restored.size() + saved.blocks.size());  // from here on nothing fails
  const auto to = sequence.table.blocks().subspan(static_cast<std::size_t>(saved.first));
  for (std::size_t i = 0; i < saved.blocks.size(); ++i) restores.push_back({saved.blocks[i], to[i]});
  drafted_.restored.insert(drafted_.restored.end(), saved.blocks.begin(), saved.blocks.end());
  num_restored_blocks_ += saved.blocks.size();
  sequence.saved = {};
  sequence.prompt_step = last_plan_ + 1;  // copies within the cache come before: no fork before the next step
}

// Gives back the first blocks of what is saved. What was still to be saved there is not.
void Scheduler::forget_saved(SavedBlocks& saved, std::size_t count) {
  const auto end = saved.blocks.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto block = saved.blocks.begin(); block != end; ++block) host_pool_.release(*block);
  if (count > 0)
    std::erase_if(saves_, [this](const BlockCopy& save) { return host_pool_.ref_count(save.to) == 0; });
  saved.first += static_cast<int>(count);
  saved.blocks.erase(saved.blocks.begin(), end);
  if (saved.blocks.empty()) saved = {};
}

}  // namespace quire
