#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/prefix_cache.h"

namespace quire {

// Slots for the fixed states of sequences: what recurrent layers keep of a sequence as a whole, behind some
// of its first tokens. A checkpoint is a slot whose states are those behind a row of the prefix cache. It is
// found by that row as long as the row's block has its contents, and until its slot is taken for others: of
// the slots that nobody holds, the one whose states are cheapest to compute again for the time that nobody
// has used them (GreedyDual: Young, "The k-server dual and loose competitiveness for paging", 1994). Not
// thread-safe.
class StateCache {
 public:
  // Refers to the pool of blocks that stand for rows.
  StateCache(int num_slots, const BlockPool& blocks);

  const BlockPool& pool() const { return pool_; }
  // A slot that nobody holds, of which there must be one; its checkpoint is gone.
  BlockRef take();
  BlockRef hold(BlockId slot) { return {pool_, slot}; }

  // The slot of a row's checkpoint, or kNoBlock.
  BlockId find(PrefixCache::Link row) const;
  // What it saves is worth as much as if it had just been made.
  void touch(BlockId slot);
  // The states in a slot, which somebody holds and nobody writes any more, are those behind this row. If
  // there is another checkpoint of it, that stays. num_saved: tokens that must be computed where it is
  // missing.
  void enter(PrefixCache::Link row, BlockId slot, int num_saved);
  // The slot's checkpoint is the first to go from now on.
  void demote(BlockId slot) { checkpoints_[slot].worth = 0; }
  // It has none any more.
  void forget(BlockId slot) { checkpoints_[slot] = {}; }
  void clear() { std::ranges::fill(checkpoints_, Checkpoint{}); }
  // Whether a hit could find the slot.
  bool is_checkpoint(BlockId slot) const { return checkpoints_[slot].row.is_alive(blocks_); }

  // Throws InternalError where an invariant of docs/invariants.md does not hold.
  void check() const;

 private:
  struct Checkpoint {
    PrefixCache::Link row = {};
    int num_saved = 0;
    double worth = 0;
    std::uint64_t last_use = 0;
  };

  const BlockPool& blocks_;
  BlockPool pool_;
  std::vector<Checkpoint> checkpoints_;  // by slot
  std::vector<BlockId> slot_of_;         // by block that stands for a row: a slot that had its states
  double clock_ = 0;                     // the worth of what was given up last
  std::uint64_t num_uses_ = 0;
};

}  // namespace quire
