// Who waits in which place, and what it takes to run.
#include <algorithm>
#include <span>
#include <unordered_map>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {
namespace {

// Whether a beam that is held had to give its blocks to another one of its search.
bool is_stripped(const Sequence& sequence) { return sequence.held && sequence.num_planned == 0; }

}  // namespace

void Scheduler::enqueue(Sequence& sequence) {
  const auto place = waiting_.insert(&sequence).first;
  if (place == waiting_.begin()) admission_blocked_ = false;
}

// A request counts as queued until its first sequence is admitted.
void Scheduler::count_queued(const Sequence& sequence, int sign) {
  const SequenceRequest& request = *sequence.request;
  if (request.first_sibling != 0 && request.first_sibling != sequence.id) return;
  num_queued_requests_ += sign;
  num_queued_tokens_ += sign * request.num_queued_tokens();
}

// Whether the first waiting sequence precedes running_[place] and may try to be admitted. Newcomers wait
// while a running sequence drains to give its blocks back: it is the next to be preempted.
bool Scheduler::waiting_is_next(std::size_t place) const {
  if (waiting_.empty() || admission_blocked_) return false;
  if (!running_.empty() && running_.back()->yielding) return false;
  return place == running_.size() || (*waiting_.begin())->precedence() < running_[place]->precedence();
}

// Makes the first waiting sequence running_[place], if blocks are free for all its tokens and for what those
// running will take next. Where it would fit without those that come behind, they make way, the last one
// first.
bool Scheduler::admit_next(std::size_t place) {
  Sequence& sequence = **waiting_.begin();
  while (place < running_.size() || !free_seats_.empty()) {
    const Sequence* sibling = find_sibling(sequence);
    if (sibling && sibling->num_planned < sibling->num_prompt)
      return false;  // what it computes will be shared
    const ComputedPrefix computed = find_computed(sequence, sibling);
    int num_needed = blocks_to_admit(sequence, computed);
    int num_behind = 0;  // blocks that those behind will take
    for (std::size_t i = 0; i < running_.size(); ++i)
      (i < place ? num_needed : num_behind) += blocks_ahead(*running_[i]);
    if (!free_seats_.empty() && num_needed + num_behind <= pool_.num_free()) {
      waiting_.erase(waiting_.begin());
      running_.insert(running_.begin() + static_cast<std::ptrdiff_t>(place), &sequence);
      start_running(sequence, computed, sibling);
      return true;
    }
    if (place == running_.size() || num_needed > pool_.num_free() + num_held_from(place)) {
      if (strip_held_sibling(sequence)) continue;
      break;
    }
    if (running_.back()->num_in_flight > 0) {
      running_.back()->yielding = true;
      return false;
    }
    preempt_last();
  }
  admission_blocked_ = true;
  return false;
}

// Blocks that only running_[place] and those behind it hold.
int Scheduler::num_held_from(std::size_t place) const {
  std::unordered_map<BlockId, int> holders;
  int count = 0;
  for (std::size_t i = place; i < running_.size(); ++i) {
    for (const BlockId block : running_[i]->table.held())
      count += ++holders[block] == pool_.ref_count(block) ? 1 : 0;
  }
  return count;
}

// A running sibling, if there is one whose blocks are filled by the steps that are planned: where possible,
// one whose prompt is.
const Sequence* Scheduler::find_sibling(const Sequence& sequence) const {
  const SequenceId first = sequence.request->first_sibling;
  if (first == 0 || needs_every_position(sequence.prompt_output())) return nullptr;
  const Sequence* found = nullptr;
  for (const Sequence* other : running_) {
    if (other->request->first_sibling != first || is_stripped(*other) || !other->saved.blocks.empty())
      continue;
    found = other;
    if (other->num_planned >= other->num_prompt) break;
  }
  return found;
}

// What it can share, and behind that what is saved, if the two meet or the window begins there.
Scheduler::ComputedPrefix Scheduler::find_computed(const Sequence& sequence, const Sequence* sibling) const {
  ComputedPrefix computed = find_shared(sequence, sibling);
  const CacheLayout& layout = config_.layout;
  const int num_full = computed.num_tokens / layout.block_size;
  const SavedBlocks& saved = sequence.saved;
  const int num_before = std::max(num_full, layout.num_outside_all(saved.num_tokens));
  if (saved.num_tokens <= computed.num_tokens || saved.first > num_before) return computed;
  computed.blocks.resize(static_cast<std::size_t>(num_full) * layout.windows.size());
  computed.num_tokens = saved.num_tokens;
  computed.num_restored = layout.rows_for(saved.num_tokens) - num_before;
  return computed;
}

// The last known token is never in it: that is computed for its logits.
Scheduler::ComputedPrefix Scheduler::find_shared(const Sequence& sequence, const Sequence* sibling) const {
  ComputedPrefix computed;
  const std::size_t most = sequence.tokens().size() - 1;
  if (config_.enable_prefix_caching && !needs_every_position(sequence.prompt_output()))
    computed.blocks = prefix_cache_.match(sequence.tokens().first(most), sequence.salt);
  computed.num_tokens = num_shared_rows(computed) * config_.layout.block_size;
  const int num_common = std::min(sequence.num_prompt, static_cast<int>(most));
  if (!sibling || num_common <= computed.num_tokens) return computed;
  if (config_.layout.leaves_rows(num_common, sibling->table.position())) return computed;
  const auto size =
      static_cast<std::size_t>(config_.layout.rows_for(num_common)) * config_.layout.windows.size();
  const auto common = sibling->table.blocks().first(size);
  return {{common.begin(), common.end()}, num_common, 0, true};
}

// The blocks it takes for all its tokens, beside those it can share, and for the next ones.
int Scheduler::blocks_to_admit(const Sequence& sequence, const ComputedPrefix& computed) const {
  const CacheLayout& layout = config_.layout;
  int num_shared = 0;
  for (int lane = 0; lane < layout.num_lanes(); ++lane)
    for (int row = layout.num_outside(lane, computed.num_tokens); row < num_shared_rows(computed); ++row)
      num_shared +=
          pool_.ref_count(layout.row(computed.blocks, row)[static_cast<std::size_t>(lane)]) > 0 ? 1 : 0;
  const bool copies_last = computed.num_restored == 0 && computed.num_tokens % layout.block_size != 0;
  return blocks_ahead(sequence) - num_shared + (copies_last ? layout.num_lanes() : 0);
}

// The blocks a sequence will take for the tokens it has and for the next block_size, unless it ends earlier,
// and for the copies of shared ones that it will write. It gives back what leaves its windows before a later
// step takes more. Alone, never more than the whole cache has.
int Scheduler::blocks_ahead(const Sequence& sequence) const {
  if (is_stripped(sequence)) return 0;
  const CacheLayout& layout = config_.layout;
  const BlockTable& table = sequence.table;
  int copies = 0;
  if (const int next = sequence.num_planned / layout.block_size; next < table.size())
    for (const BlockId block : table.row(next)) copies += pool_.ref_count(block) > 1 ? 1 : 0;
  const int num_rows =
      std::min(layout.rows_for(sequence.max_length - 1), layout.rows_for(sequence.length()) + 1);
  const int span = std::min(sequence.num_unplanned(), config_.max_num_batched_tokens) + layout.block_size;
  std::int64_t most = 0;  // that it holds at once
  for (int lane = 0; lane < layout.num_lanes(); ++lane) {
    const int window = layout.windows[static_cast<std::size_t>(lane)];
    const int num_outside = layout.num_outside(lane, table.position());
    const int all = num_rows - num_outside;
    const int at_once = window == 0 ? all : blocks_across(window - 1 + span, layout.block_size);
    most += std::max(table.size() - num_outside, std::min(all, at_once));
  }
  most = std::min<std::int64_t>(most, pool_.num_blocks());
  return copies + static_cast<int>(most) - table.num_held();
}

void Scheduler::start_running(Sequence& sequence, const ComputedPrefix& computed, const Sequence* sibling) {
  sequence.state = SequenceState::kRunning;
  sequence.seat = free_seats_.back();
  free_seats_.pop_back();
  const CacheLayout& layout = config_.layout;
  const int num_shared = num_shared_rows(computed);
  // A sibling's blocks may not be those that the cache knows by their contents. Where the last row lies
  // before every window, a new block may take its place below.
  const bool indexed = !computed.forked && num_shared > 0;
  sequence.num_indexed = indexed ? num_shared : 0;
  sequence.last_index =
      indexed ? prefix_cache_.link(layout.row(computed.blocks, num_shared - 1)) : PrefixCache::Link{};
  sequence.table.release_outside(computed.num_tokens);
  for (int i = 0; i < layout.rows_for(computed.num_tokens) - computed.num_restored; ++i)
    sequence.table.share(i < num_shared ? layout.row(computed.blocks, i) : std::span<const BlockId>{});
  for (int i = 0; i < computed.num_restored; ++i) sequence.table.append();
  forget_saved(sequence.saved, computed.num_restored);
  sequence.num_planned = computed.num_tokens;
  sequence.prompt_step = computed.forked ? sibling->prompt_step : 0;
  if (sequence.num_cached_tokens >= 0) return;
  count_queued(sequence, -1);
  sequence.num_cached_tokens = computed.forked ? 0 : computed.num_tokens;
  const bool looked_up =
      config_.enable_prefix_caching && !needs_every_position(sequence.prompt_output()) && !computed.forked;
  if (looked_up) prefix_cache_queries_ += sequence.num_prompt;
  prefix_cache_hits_ += sequence.num_cached_tokens;
}

}  // namespace quire
