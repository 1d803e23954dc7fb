#include "kvcache/kv_cache.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace quire {

KvCache::KvCache(const CacheLayout& layout, int num_blocks, int num_host_blocks, bool caches_prefixes,
                 std::uint64_t hash_seed, int hash_bits)
    : layout_(layout),
      pool_(num_blocks),
      host_pool_(num_host_blocks),
      prefix_cache_(pool_, layout_, hash_seed, hash_bits),
      caches_prefixes_(caches_prefixes) {}

ComputedPrefix KvCache::find(const SequenceBlocks& blocks, std::span<const TokenId> tokens,
                             const SequenceBlocks* sibling, int num_common) const {
  ComputedPrefix computed;
  computed.blocks = prefix_cache_.match(tokens, blocks.salt);
  computed.num_tokens = num_rows(computed) * layout_.block_size;
  if (sibling && num_common > computed.num_tokens &&
      !layout_.leaves_rows(num_common, sibling->table.position())) {
    const auto size = static_cast<std::size_t>(layout_.rows_for(num_common)) * layout_.windows.size();
    const auto common = sibling->table.blocks().first(size);
    computed = {{common.begin(), common.end()}, num_common, 0, true};
  }
  // What is saved is of use if the two meet or the window begins there.
  const int num_full = computed.num_tokens / layout_.block_size;
  const SavedBlocks& saved = blocks.saved;
  const int num_before = std::max(num_full, layout_.num_outside_all(saved.num_tokens));
  if (saved.num_tokens <= computed.num_tokens || saved.first > num_before) return computed;
  computed.blocks.resize(static_cast<std::size_t>(num_full) * layout_.windows.size());
  computed.num_tokens = saved.num_tokens;
  computed.num_restored = layout_.rows_for(saved.num_tokens) - num_before;
  return computed;
}

int KvCache::num_spared(const ComputedPrefix& computed) const {
  int count = 0;
  for (int lane = 0; lane < layout_.num_lanes(); ++lane)
    for (int row = layout_.num_outside(lane, computed.num_tokens); row < num_rows(computed); ++row)
      count += pool_.ref_count(layout_.row(computed.blocks, row)[static_cast<std::size_t>(lane)]) > 0 ? 1 : 0;
  const bool copies_last = computed.num_restored == 0 && computed.num_tokens % layout_.block_size != 0;
  return count - (copies_last ? layout_.num_lanes() : 0);
}

int KvCache::num_to_take(const SequenceBlocks& blocks, int length, int span) const {
  const BlockTable& table = blocks.table;
  int count = -table.num_held();
  if (const int next = blocks.num_tokens / layout_.block_size; next < table.size())
    for (const BlockId block : table.row(next)) count += is_shared(block) ? 1 : 0;
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
}

int KvCache::prepare_write(SequenceBlocks& blocks, int num_tokens, bool at_start, bool in_flight,
                           std::vector<BlockCopy>& copies) {
  if (at_start) forget_row_to_write(blocks);
  const int first_changed =
      blocks.table.prepare_write(blocks.num_tokens, blocks.num_tokens + num_tokens, copies);
  for (std::size_t i = 0; in_flight && i < copies.size(); ++i) {
    replaced_.back().push_back(copies[i].from);
    pool_.acquire(copies[i].from);
  }
  return at_start ? layout_.num_outside_all(blocks.table.position()) : first_changed;
}

// A fork computes the last token of its prompt again. If that lies in full blocks, which nobody else holds
// any more, they are written in place: out of the cache until the step is planned.
void KvCache::forget_row_to_write(const SequenceBlocks& blocks) {
  const int index = blocks.num_tokens / layout_.block_size;
  if (index == blocks.table.size()) return;
  for (const BlockId block : blocks.table.row(index)) {
    if (is_shared(block)) continue;  // then a copy is written
    prefix_cache_.erase(block);
    pool_.renew(block);  // what follows its old contents is not to be found behind the new ones
  }
}

int KvCache::restore(SequenceBlocks& blocks, std::vector<BlockCopy>& restores) {
  const std::size_t num_before = restores.size();
  restores.reserve(num_before + blocks.saved.blocks.size());  // behind this nothing fails
  const SavedBlocks saved = std::exchange(blocks.saved, {});
  const auto to = blocks.table.rows_from(saved.first);
  for (std::size_t i = 0; i < saved.blocks.size(); ++i)
    if (saved.blocks[i] != kNoBlock) restores.push_back({saved.blocks[i], to[i]});
  return static_cast<int>(restores.size() - num_before);
}

void KvCache::index(SequenceBlocks& blocks, std::span<const TokenId> tokens) {
  const auto size = static_cast<std::size_t>(layout_.block_size);
  const int num_full = std::min(blocks.num_tokens, static_cast<int>(tokens.size())) / layout_.block_size;
  for (; caches_prefixes_ && blocks.num_indexed < num_full; ++blocks.num_indexed) {
    const auto i = static_cast<std::size_t>(blocks.num_indexed);
    const PrefixCache::Key key = {blocks.last_index, tokens.subspan(i * size, size), blocks.salt};
    const auto link = prefix_cache_.insert(blocks.table.row(blocks.num_indexed), key);
    if (!link) return;  // a row before its windows, which it never had
    blocks.last_index = *link;
  }
}

std::vector<BlockCopy> KvCache::close_step(std::span<const BlockCopy> restores) {
  for (const BlockCopy& restore : restores) host_pool_.release(restore.from);
  replaced_.emplace_back();
  return std::exchange(saves_, {});
}

bool KvCache::apply_step() {
  const std::vector<BlockId> replaced = std::move(replaced_.front());
  replaced_.pop_front();
  for (const BlockId block : replaced) pool_.release(block);
  return !replaced.empty();
}

void KvCache::lose_steps(std::span<const BlockCopy> restores) {
  while (!replaced_.empty()) apply_step();
  for (const BlockCopy& restore : restores) host_pool_.release(restore.from);
  saves_.clear();
  prefix_cache_.clear();
}

int KvCache::save(SequenceBlocks& blocks, bool shares, const PreemptionCosts& costs) {
  const BlockTable& table = blocks.table;
  const auto is_own = [this](BlockId block) { return block != kNoBlock && !is_shared(block); };
  const bool saves_all = !shares || layout_.leaves_rows(0, table.position());
  int first = layout_.num_outside_all(table.position());
  while (!saves_all && first < table.size() && std::ranges::none_of(table.row(first), is_own)) ++first;
  const auto to_save = table.rows_from(first);
  const auto num_blocks = static_cast<int>(std::ssize(to_save) - std::ranges::count(to_save, kNoBlock));
  const int num_before = saves_all ? 0 : first * layout_.block_size;
  const int num_tokens = blocks.num_tokens - num_before;
  if (num_tokens <= 0 || num_blocks > host_pool_.num_free() ||
      !costs.saving_pays(num_before, num_tokens, num_blocks))
    return 0;
  blocks.saved = {first, blocks.num_tokens, {}};
  for (const BlockId block : to_save) {
    blocks.saved.blocks.push_back(block == kNoBlock ? kNoBlock : host_pool_.allocate());
    if (block != kNoBlock) saves_.push_back({block, blocks.saved.blocks.back()});
  }
  return num_blocks;
}

void KvCache::forget_saved(SavedBlocks& saved, int num_kept) {
  const int num_lanes = layout_.num_lanes();
  const auto end = saved.blocks.end() - num_kept * num_lanes;
  saved.first += static_cast<int>(end - saved.blocks.begin()) / num_lanes;
  for (auto block = saved.blocks.begin(); block != end; ++block)
    if (*block != kNoBlock) host_pool_.release(*block);
  if (end != saved.blocks.begin())
    std::erase_if(saves_, [this](const BlockCopy& save) { return host_pool_.ref_count(save.to) == 0; });
  saved.blocks.erase(saved.blocks.begin(), end);
  if (saved.blocks.empty()) saved = {};
}

void KvCache::distrust(const SequenceBlocks& blocks, std::span<const TokenId> tokens) {
  prefix_cache_.erase_chain(tokens, blocks.salt);
  for (const BlockId block : blocks.table.held()) prefix_cache_.erase(block);
}

void KvCache::check(std::span<const SequenceBlocks* const> all) const {
  pool_.check();          // 1
  prefix_cache_.check();  // 4
  host_pool_.check();
  std::vector<int> num_holders(static_cast<std::size_t>(pool_.num_blocks()));
  std::vector<int> num_savers(static_cast<std::size_t>(host_pool_.num_blocks()));
  const auto count = [](std::span<const BlockId> held, std::vector<int>& counts) {
    for (const BlockId block : held)
      if (block != kNoBlock) ++counts.at(static_cast<std::size_t>(block));
  };
  for (const SequenceBlocks* blocks : all) {
    const BlockTable& table = blocks->table;
    QUIRE_CHECK(table.size() == layout_.rows_for(blocks->num_tokens), "5, 6: {} rows of {} tokens",
                table.size(), blocks->num_tokens);
    QUIRE_CHECK(table.num_held() == std::ssize(table.held()), "17: {} blocks before position {}",
                table.num_held(), table.position());
    QUIRE_CHECK(blocks->num_indexed <= blocks->num_tokens / layout_.block_size, "4: {} rows are cached",
                blocks->num_indexed);
    count(table.blocks(), num_holders);
    count(blocks->saved.blocks, num_savers);
  }
  for (const std::vector<BlockId>& replaced : replaced_) count(replaced, num_holders);
  for (BlockId block = 0; block < pool_.num_blocks(); ++block)
    QUIRE_CHECK(pool_.ref_count(block) == num_holders[static_cast<std::size_t>(block)],
                "2: block {} has {} references", block, pool_.ref_count(block));
  for (BlockId block = 0; block < host_pool_.num_blocks(); ++block) {
    const int num_references = host_pool_.ref_count(block);
    QUIRE_CHECK(num_references <= 1 && num_references == num_savers[static_cast<std::size_t>(block)],
                "16: block {} of host memory has {} references", block, num_references);
  }
  std::set<BlockId> targets;
  for (const BlockCopy& save : saves_)
    QUIRE_CHECK(host_pool_.ref_count(save.to) == 1 && targets.insert(save.to).second,
                "16: block {} of host memory is saved to for nobody, or twice", save.to);
}

}  // namespace quire
