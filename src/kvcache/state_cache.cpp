#include "kvcache/state_cache.h"

#include <algorithm>

#include "base/error.h"

namespace quire {

StateCache::StateCache(int num_slots, const BlockPool& blocks)
    : blocks_(blocks),
      pool_(num_slots),
      checkpoints_(static_cast<std::size_t>(num_slots)),
      slot_of_(static_cast<std::size_t>(num_slots > 0 ? blocks.num_blocks() : 0), kNoBlock) {}

BlockRef StateCache::take() {
  QUIRE_CHECK(pool_.num_free() > 0, "no slot is free");
  BlockId least = kNoBlock;
  std::pair<double, std::uint64_t> worth;
  for (BlockId slot = 0; slot < pool_.num_blocks(); ++slot) {
    if (pool_.ref_count(slot) > 0) continue;
    const Checkpoint& checkpoint = checkpoints_[slot];
    const std::pair its_worth(checkpoint.row.is_alive(blocks_) ? checkpoint.worth : -1, checkpoint.last_use);
    if (least == kNoBlock || its_worth < worth) {
      least = slot;
      worth = its_worth;
    }
  }
  clock_ = std::max(clock_, worth.first);
  forget(least);
  return {pool_, least};
}

BlockId StateCache::find(PrefixCache::Link row) const {
  if (slot_of_.empty()) return kNoBlock;
  const BlockId slot = slot_of_[row.block];
  return slot != kNoBlock && checkpoints_[slot].row == row ? slot : kNoBlock;
}

void StateCache::enter(PrefixCache::Link row, BlockId slot, int num_saved) {
  QUIRE_CHECK(pool_.ref_count(slot) > 0);
  if (const BlockId there = find(row); there != kNoBlock) return touch(there);
  slot_of_[row.block] = slot;
  checkpoints_[slot] = {.row = row, .num_saved = num_saved};
  touch(slot);
}

void StateCache::touch(BlockId slot) {
  Checkpoint& checkpoint = checkpoints_[slot];
  checkpoint.worth = clock_ + checkpoint.num_saved;
  checkpoint.last_use = ++num_uses_;
}

void StateCache::check() const {
  pool_.check();
  for (BlockId slot = 0; slot < pool_.num_blocks(); ++slot) {
    const Checkpoint& checkpoint = checkpoints_[slot];
    QUIRE_CHECK(!checkpoint.row.is_alive(blocks_) || find(checkpoint.row) == slot,
                "20: the checkpoint in slot {} is lost", slot);
  }
}

}  // namespace quire
