#include "kvcache/kv_cache.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <set>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

// What it has kept of its states behind at most so many tokens, and most of them.
const SequenceStates::Kept* kept_of(const SequenceBlocks& blocks, int most) {
  const SequenceStates::Kept* found = nullptr;
  for (const SequenceStates::Kept& kept : blocks.states.kept)
    if (kept.num_tokens <= most && (!found || kept.num_tokens > found->num_tokens)) found = &kept;
  return found;
}

int num_blocks_in(std::span<const BlockId> places) {
  return static_cast<int>(std::ssize(places) - std::ranges::count(places, kNoBlock));
}

void count(BlockId held, std::vector<int>& counts) {
  if (held != kNoBlock) ++counts.at(held);
}

}  // namespace

KvCache::KvCache(const CacheLayout& layout, const CacheSizes& sizes, bool caches_prefixes,
                 std::uint64_t hash_seed, int hash_bits)
    : layout_(layout),
      pool_(sizes.num_blocks),
      host_pool_(sizes.num_host_blocks),
      prefix_cache_(pool_, layout_, hash_seed, hash_bits),
      states_(sizes.num_state_slots, pool_),
      host_slots_(sizes.num_host_state_slots),
      caches_prefixes_(caches_prefixes) {}

ComputedPrefix KvCache::find(const SequenceBlocks& blocks, std::span<const TokenId> tokens,
                             const SequenceBlocks* sibling, int num_common) const {
  const auto has_checkpoint = [this](const PrefixCache::Link& row) { return states_.find(row) != kNoBlock; };
  PrefixCache::Match match = has_states() ? prefix_cache_.match(tokens, blocks.salt, has_checkpoint)
                                          : prefix_cache_.match(tokens, blocks.salt);
  const auto num_lanes = layout_.windows.size();
  const int num_known = static_cast<int>(match.rows.size() / num_lanes) * layout_.block_size;
  ComputedPrefix computed;
  computed.num_tokens = match.num_ending * layout_.block_size;
  computed.end = match.end;
  if (has_states() && computed.num_tokens < num_known / layout_.state_interval * layout_.state_interval)
    computed.end = {CacheEnd::Reason::kNoCheckpoint};
  if (has_states() && match.num_ending > 0)
    computed.states = states_.find(prefix_cache_.link(layout_.row(match.rows, match.num_ending - 1)));
  const SequenceStates::Kept* kept = has_states() && sibling ? kept_of(*sibling, num_common) : nullptr;
  if (has_states()) num_common = kept ? kept->num_tokens : 0;
  if (sibling && num_common > computed.num_tokens &&
      !layout_.leaves_rows(num_common, sibling->table.position())) {
    const auto common =
        sibling->table.blocks().first(static_cast<std::size_t>(layout_.rows_for(num_common)) * num_lanes);
    computed.blocks.assign(common.begin(), common.end());
    computed.num_tokens = num_common;
    computed.forked = true;
    computed.states = kept ? kept->slot.id() : kNoBlock;
  }
  // What is saved is of use if the two meet or the window begins there. Its states are saved with it, so what
  // is known before it needs none.
  const SavedBlocks& saved = blocks.saved;
  const bool is_behind = !computed.forked && num_known < saved.num_tokens;
  const int num_full = (is_behind ? num_known : computed.num_tokens) / layout_.block_size;
  const int num_before = std::max(num_full, layout_.num_outside_all(saved.num_tokens));
  const bool restores = saved.num_tokens > computed.num_tokens && saved.first <= num_before;
  if (restores) {
    computed.num_tokens = saved.num_tokens;
    computed.num_restored = layout_.rows_for(saved.num_tokens) - num_before;
    computed.states = kNoBlock;
  }
  if (!computed.forked) computed.blocks = std::move(match.rows);
  if (restores || !computed.forked)
    computed.blocks.resize(static_cast<std::size_t>(restores ? num_full : match.num_ending) * num_lanes);
  computed.num_known = num_known;
  return computed;
}

int KvCache::num_spared(const ComputedPrefix& computed) const {
  int count = 0;
  for (int lane = 0; lane < layout_.num_lanes(); ++lane)
    for (int row = layout_.num_outside(lane, computed.num_tokens); row < num_rows(computed); ++row)
      count += pool_.ref_count(layout_.row(computed.blocks, row)[lane]) > 0 ? 1 : 0;
  const bool copies_last = computed.num_restored == 0 && computed.num_tokens % layout_.block_size != 0;
  return count - (copies_last ? layout_.num_lanes() : 0);
}

int KvCache::num_to_take(const SequenceBlocks& blocks, int length, int span) const {
  const BlockTable& table = blocks.table;
  int count = -table.num_held();
  if (const int next = blocks.num_tokens / layout_.block_size; next < table.size())
    for (const BlockId block : table.row(next)) count += pool_.is_shared(block) ? 1 : 0;
  const std::int64_t most = layout_.blocks_held(length, span, table.position(), table.size());
  return count + static_cast<int>(std::min<std::int64_t>(most, pool_.num_blocks()));
}

void KvCache::admit(SequenceBlocks& blocks, const ComputedPrefix& computed) {
  const int num_shared = num_rows(computed);
  // A sibling's blocks may not be those that the cache knows by their contents. Where the last row lies
  // before every window, a new block may take its place below.
  if (!computed.forked && num_shared > 0) {
    blocks.num_indexed = num_shared;
    blocks.last_index = prefix_cache_.link(layout_.row(computed.blocks, num_shared - 1));
  }
  blocks.table.release_outside(computed.num_tokens);
  // Behind the shared rows are those before every window, and then those that are restored.
  for (int i = 0; i < layout_.rows_for(computed.num_tokens); ++i)
    blocks.table.append(i < num_shared ? layout_.row(computed.blocks, i) : std::span<const BlockId>{});
  blocks.num_tokens = computed.num_tokens;
  forget_saved(blocks.saved, computed.num_restored);
  if (has_states()) admit_states(blocks.states, computed);
}

// Where no other slot is free, a checkpoint is gone on with in its own.
void KvCache::admit_states(SequenceStates& states, const ComputedPrefix& computed) {
  states.num_before = computed.num_tokens;
  if (computed.states != kNoBlock) {
    states_.touch(computed.states);
    states.source = states_.hold(computed.states);
  }
  if (states_.pool().num_free() > 0) {
    states.own = states_.take();
    return;
  }
  QUIRE_CHECK(states.source && states_.pool().ref_count(states.source.id()) == 1, "no slot is free");
  states_.forget(states.source.id());
  states.own = std::exchange(states.source, {});
}

BlockCopy KvCache::write_states(SequenceBlocks& blocks) {
  SequenceStates& states = blocks.states;
  const BlockId own = states.own.id();
  if (!states.source) return {blocks.num_tokens == 0 ? kNoBlock : own, own};
  state_reads_.push_back(std::exchange(states.source, {}));
  return {state_reads_.back().id(), own};
}

void KvCache::keep_states(SequenceBlocks& blocks, bool in_output) {
  if (states_.pool().num_free() == 0) return;
  SequenceStates& states = blocks.states;
  states.kept.push_back({states.own, blocks.num_tokens, in_output});
  states.source = std::exchange(states.own, states_.take());
}

bool KvCache::fork_states(SequenceBlocks& blocks) {
  if (!has_states()) return true;
  SequenceStates& states = blocks.states;
  if (states_.pool().num_free() == 0) return false;
  if (!states.source) states.source = states.own;
  states.own = states_.take();
  states.kept.clear();
  return true;
}

// What is kept behind the row that was indexed last becomes its checkpoint. One in an output makes the one
// before it there nearly worthless.
void KvCache::enter_kept(SequenceBlocks& blocks) {
  SequenceStates& states = blocks.states;
  const int num_tokens = blocks.num_indexed * layout_.block_size;
  const auto kept = std::ranges::find(states.kept, num_tokens, &SequenceStates::Kept::num_tokens);
  if (kept == states.kept.end()) return;
  states_.enter(blocks.last_index, kept->slot.id(), num_tokens - states.num_before);
  if (kept->in_output) {
    if (states.last_output != kNoBlock && states_.find(states.last_row) == states.last_output)
      states_.demote(states.last_output);
    states.last_output = kept->slot.id();
    states.last_row = blocks.last_index;
  } else {
    states.num_before = num_tokens;
  }
  states.kept.erase(kept);
}

int KvCache::prepare_write(SequenceBlocks& blocks, int num_tokens, bool at_start, bool in_flight,
                           std::vector<BlockCopy>& copies) {
  if (at_start) forget_row_to_write(blocks);
  const int first_changed =
      blocks.table.prepare_write(blocks.num_tokens, blocks.num_tokens + num_tokens, copies);
  for (std::size_t i = 0; in_flight && i < copies.size(); ++i)
    replaced_.back().emplace_back(pool_, copies[i].from);
  return at_start ? layout_.num_outside_all(blocks.table.position()) : first_changed;
}

// A fork computes the last token of its prompt again. If that lies in full blocks, which nobody else holds
// any more, they are written in place: out of the cache until the step is planned.
void KvCache::forget_row_to_write(const SequenceBlocks& blocks) {
  const int index = blocks.num_tokens / layout_.block_size;
  if (index == blocks.table.size()) return;
  for (const BlockId block : blocks.table.row(index)) {
    if (pool_.is_shared(block)) continue;  // then a copy is written
    prefix_cache_.erase(block);
    pool_.renew(block);  // what follows its old contents is not to be found behind the new ones
  }
}

int KvCache::restore(SequenceBlocks& blocks, std::vector<BlockCopy>& restores) {
  const std::size_t num_before = restores.size();
  restores.reserve(num_before + blocks.saved.blocks.size());
  restoring_.reserve(restoring_.size() + blocks.saved.blocks.size() + 1);
  if (blocks.saved.states)
    state_copies_.restores.push_back({blocks.saved.states.id(), blocks.states.own.id()});
  SavedBlocks saved = std::exchange(blocks.saved, {});  // behind this nothing fails
  const auto to = blocks.table.rows_from(saved.first);
  for (std::size_t i = 0; i < saved.blocks.size(); ++i)
    if (saved.blocks[i]) restores.push_back({saved.blocks[i].id(), to[i]});
  std::ranges::move(saved.blocks, std::back_inserter(restoring_));
  restoring_.push_back(std::move(saved.states));
  return static_cast<int>(restores.size() - num_before);
}

void KvCache::index(SequenceBlocks& blocks, std::span<const TokenId> tokens) {
  const auto size = static_cast<std::size_t>(layout_.block_size);
  const int num_full = std::min(blocks.num_tokens, static_cast<int>(tokens.size())) / layout_.block_size;
  while (caches_prefixes_ && blocks.num_indexed < num_full) {
    const auto i = static_cast<std::size_t>(blocks.num_indexed);
    const PrefixCache::Key key = {blocks.last_index, tokens.subspan(i * size, size), blocks.salt};
    const auto link = prefix_cache_.insert(blocks.table.row(blocks.num_indexed), key);
    if (!link) return;  // a row before its windows, which it never had
    blocks.last_index = *link;
    ++blocks.num_indexed;
    enter_kept(blocks);
  }
}

std::vector<BlockCopy> KvCache::close_step(StateCopies& states) {
  restoring_.clear();
  states = std::exchange(state_copies_, {});
  state_reads_.clear();
  replaced_.emplace_back();
  return std::exchange(saves_, {});
}

bool KvCache::apply_step() {
  const bool gives_back = !replaced_.front().empty();
  replaced_.pop_front();
  return gives_back;
}

void KvCache::lose_steps() {
  replaced_.clear();
  restoring_.clear();
  saves_.clear();
  state_copies_ = {};
  state_reads_.clear();
  prefix_cache_.clear();
  states_.clear();
}

int KvCache::save(SequenceBlocks& blocks, bool shares, const PreemptionCosts& costs) {
  const BlockTable& table = blocks.table;
  const auto is_own = [this](BlockId block) { return block != kNoBlock && !pool_.is_shared(block); };
  const bool saves_all = !shares || layout_.leaves_rows(0, table.position());
  int first = layout_.num_outside_all(table.position());
  while (!saves_all && first < table.size() && std::ranges::none_of(table.row(first), is_own)) ++first;
  const auto to_save = table.rows_from(first);
  const int num_blocks = num_blocks_in(to_save);
  const int num_before = saves_all ? 0 : first * layout_.block_size;
  const int num_tokens = blocks.num_tokens - num_before;
  if (num_tokens <= 0 || num_blocks > host_pool_.num_free() ||
      (has_states() && host_slots_.num_free() == 0) || !costs.saving_pays(num_before, num_tokens, num_blocks))
    return 0;
  SavedBlocks saved{first, blocks.num_tokens, {}};
  try {
    saved.blocks.reserve(to_save.size());
    saves_.reserve(saves_.size() + to_save.size());
    state_copies_.saves.reserve(state_copies_.saves.size() + 1);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  blocks.saved = std::move(saved);
  for (const BlockId block : to_save) {
    blocks.saved.blocks.push_back(block == kNoBlock ? BlockRef() : BlockRef::allocate(host_pool_));
    if (block != kNoBlock) saves_.push_back({block, blocks.saved.blocks.back().id()});
  }
  if (has_states()) {
    const SequenceStates& states = blocks.states;
    blocks.saved.states = BlockRef::allocate(host_slots_);
    state_copies_.saves.push_back(
        {(states.source ? states.source : states.own).id(), blocks.saved.states.id()});
  }
  return num_blocks;
}

void KvCache::forget_saved(SavedBlocks& saved, int num_kept) {
  const int num_lanes = layout_.num_lanes();
  const auto num_given_back = std::ssize(saved.blocks) - num_kept * num_lanes;
  saved.first += static_cast<int>(num_given_back) / num_lanes;
  saved.blocks.erase(saved.blocks.begin(), saved.blocks.begin() + num_given_back);
  if (saved.blocks.empty()) saved = {};
  const auto forget = [](std::vector<BlockCopy>& saves, const BlockPool& host) {
    std::erase_if(saves, [&host](const BlockCopy& save) { return host.ref_count(save.to) == 0; });
  };
  forget(saves_, host_pool_);
  forget(state_copies_.saves, host_slots_);
}

void KvCache::distrust(const SequenceBlocks& blocks, std::span<const TokenId> tokens) {
  prefix_cache_.erase_chain(tokens, blocks.salt);
  for (const BlockId block : blocks.table.blocks())
    if (block != kNoBlock) prefix_cache_.erase(block);
}

void KvCache::count_states(const SequenceBlocks& blocks, std::vector<int>& num_holders,
                           std::vector<int>& num_savers) const {
  const SequenceStates& states = blocks.states;
  count(states.own.id(), num_holders);
  count(states.source.id(), num_holders);
  for (const SequenceStates::Kept& kept : states.kept) count(kept.slot.id(), num_holders);
  count(blocks.saved.states.id(), num_savers);
  QUIRE_CHECK(!states.own ||
                  (states_.pool().ref_count(states.own.id()) == 1 && !states_.is_checkpoint(states.own.id())),
              "19: slot {} is written, and others may read it", states.own.id());
  QUIRE_CHECK(!has_states() || blocks.num_tokens == 0 || states.own, "19: {} tokens have no states",
              blocks.num_tokens);
}

void KvCache::check(std::span<const SequenceBlocks* const> all) const {
  pool_.check();          // 1
  prefix_cache_.check();  // 4
  host_pool_.check();
  std::vector<int> num_holders(pool_.num_blocks());
  std::vector<int> num_savers(host_pool_.num_blocks());
  std::vector<int> num_slot_holders(states_.pool().num_blocks());
  std::vector<int> num_slot_savers(host_slots_.num_blocks());
  for (const SequenceBlocks* blocks : all) {
    const BlockTable& table = blocks->table;
    QUIRE_CHECK(table.size() == layout_.rows_for(blocks->num_tokens), "5, 6: {} rows of {} tokens",
                table.size(), blocks->num_tokens);
    QUIRE_CHECK(blocks->num_indexed <= blocks->num_tokens / layout_.block_size, "4: {} rows are cached",
                blocks->num_indexed);
    for (const BlockId block : table.blocks()) count(block, num_holders);
    for (const BlockRef& saved : blocks->saved.blocks) count(saved.id(), num_savers);
    count_states(*blocks, num_slot_holders, num_slot_savers);
  }
  for (const BlockRef& read : state_reads_) ++num_slot_holders.at(read.id());
  states_.check();
  const auto agrees = [](const BlockPool& slots, const std::vector<int>& counts, const char* what) {
    for (BlockId slot = 0; slot < slots.num_blocks(); ++slot)
      QUIRE_CHECK(slots.ref_count(slot) == counts[slot], "{} {} has {} references", what, slot,
                  slots.ref_count(slot));
  };
  agrees(states_.pool(), num_slot_holders, "18: slot");
  agrees(host_slots_, num_slot_savers, "16: slot of host memory");
  for (const std::vector<BlockRef>& replaced : replaced_)
    for (const BlockRef& block : replaced) count(block.id(), num_holders);
  agrees(pool_, num_holders, "2: block");
  for (BlockId block = 0; block < host_pool_.num_blocks(); ++block) {
    const int num_references = host_pool_.ref_count(block);
    QUIRE_CHECK(num_references <= 1 && num_references == num_savers[block],
                "16: block {} of host memory has {} references", block, num_references);
  }
  std::set<BlockId> targets;
  for (const BlockCopy& save : saves_)
    QUIRE_CHECK(host_pool_.ref_count(save.to) == 1 && targets.insert(save.to).second,
                "16: block {} of host memory is saved to for nobody, or twice", save.to);
  for (const SequenceBlocks* blocks : all)
    QUIRE_CHECK(blocks->table.num_held() == num_blocks_in(blocks->table.blocks()),
                "17: {} blocks before position {}", blocks->table.num_held(), blocks->table.position());
}

}  // namespace quire
