#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/block_table.h"
#include "kvcache/cache_layout.h"
#include "kvcache/ids.h"
#include "kvcache/prefix_cache.h"
#include "kvcache/state_cache.h"

namespace quire {

// What a sequence has in host memory: the rows of its table from `first` on, of its first num_tokens tokens.
struct SavedBlocks {
  int first = 0;
  int num_tokens = 0;
  std::vector<BlockRef> blocks;  // [rows, num_lanes], none where it held none; empty: nothing is saved
  BlockRef states = {};          // the slot of its fixed states there
};

// Where the fixed states of a sequence lie, behind its first SequenceBlocks::num_tokens tokens.
struct SequenceStates {
  // Those behind some of its tokens, which nobody writes any more.
  struct Kept {
    BlockRef slot;
    int num_tokens = 0;
    bool in_output = false;  // all that was known of the sequence lies before
  };

  BlockRef own;                     // what its steps write
  BlockRef source;                  // where they lie until its next step has read them; none: in `own`
  std::vector<Kept> kept;           // until they are checkpoints; for its forks as long as it runs
  int num_before = 0;               // tokens before its last checkpoint
  BlockId last_output = kNoBlock;   // the slot of its last checkpoint in its output
  PrefixCache::Link last_row = {};  // and the row
};

// What a sequence has of the cache. A copy shares its blocks; what is saved is to have one owner.
struct SequenceBlocks {
  BlockTable table;
  std::uint64_t salt = 0;             // what stands for the request's in the prefix cache
  int num_tokens = 0;                 // its first, whose computation is planned, in flight or done
  int num_indexed = 0;                // rows of the table that the prefix cache has seen
  PrefixCache::Link last_index = {};  // what stands for the last of these
  SavedBlocks saved = {};             // until a step that restores them is planned
  SequenceStates states = {};

  // Gives back what is in the cache.
  void clear() {
    table.clear();
    num_tokens = num_indexed = 0;
    last_index = {};
    states = {};
  }
};

// What is computed of a sequence when it is admitted.
struct ComputedPrefix {
  std::vector<BlockId> blocks;  // [rows, num_lanes] from its first on; those in their windows are shared
  int num_tokens = 0;           // in them and the restored ones; a last row that is not full is copied
  int num_restored = 0;         // rows that follow, from host memory
  BlockId states = kNoBlock;    // the slot of its fixed states, unless they are restored
  int num_known = 0;            // tokens in blocks that are there, if only there were states behind them
  CacheEnd end;                 // why the prefix cache has no more of it
  bool forked = false;          // the shared ones are a sibling's
};

// Seconds that go by for a sequence's preemption.
struct PreemptionCosts {
  double block_copied = 0;   // to host memory and back
  double token = 1;          // computed again
  double pair = 0;           // what each token before it adds to that
  int blocks_of_states = 0;  // that a sequence's fixed states are as large as

  // From the seconds that num_tokens tokens take alone, and behind num_before others; 0: that is not known.
  void set_computing(int num_tokens, double alone, int num_before, double behind) {
    pair = num_before > 0 ? std::max(0.0, behind - alone) / num_tokens / num_before : 0;
    token = std::max(0.0, alone / num_tokens - 0.5 * num_tokens * pair);
  }
  // Of num_tokens tokens in num_blocks blocks, behind num_before others that are there.
  bool saving_pays(int num_before, int num_tokens, int num_blocks) const {
    const double again = num_tokens * (token + (num_before + 0.5 * num_tokens) * pair);
    return (num_blocks + blocks_of_states) * block_copied < again;
  }
};

// The blocks of the KV cache and of host memory, and what sequences have of them. It knows of steps only that
// they are planned and applied in one order, and of sequences only what SequenceBlocks says.
class KvCache {
 public:
  // caches_prefixes: whether what sequences have computed is kept for others; hash_seed, hash_bits: as
  // PrefixCache's.
  KvCache(const CacheLayout& layout, const CacheSizes& sizes, bool caches_prefixes, std::uint64_t hash_seed,
          int hash_bits);

  // Of a sequence whose cached prefixes are those of equal `salt`.
  SequenceBlocks new_blocks(std::string_view salt) {
    return {.table = BlockTable(pool_, layout_), .salt = prefix_cache_.salt_of(salt)};
  }

  // What is there of a sequence that has nothing in the cache: what the prefix cache knows of `tokens`, or
  // what it can share of a sibling, with which it has its first num_common tokens in common, if that is more;
  // behind that what is saved. nullptr: there is no sibling.
  ComputedPrefix find(const SequenceBlocks& blocks, std::span<const TokenId> tokens,
                      const SequenceBlocks* sibling, int num_common) const;
  // How many blocks it spares: those that are held anyway, less the copies of a shared row that is not full.
  int num_spared(const ComputedPrefix& computed) const;
  // The blocks that a sequence will take until it holds `length` tokens, of which up to `span` are computed
  // at a time, and for copies of shared ones that it will write. It gives back what leaves its windows before
  // a later step takes more. Alone, never more than the whole cache has.
  int num_to_take(const SequenceBlocks& blocks, int length, int span) const;
  bool has_states() const { return states_.pool().num_blocks() > 0; }
  // Whether one more sequence could have its fixed states.
  bool has_slot() const { return !has_states() || states_.pool().num_free() > 0; }
  // Shares what was found, with new blocks for what is to be restored; what is saved beside is given up.
  void admit(SequenceBlocks& blocks, const ComputedPrefix& computed);

  // Gives the next num_tokens tokens their blocks. Those that are replaced by copies are put into `copies`,
  // and kept as long as steps of the sequence that are in flight may use them. Returns the first row that is
  // new to the runner, which knows nothing of the sequence at its start.
  int prepare_write(SequenceBlocks& blocks, int num_tokens, bool at_start, bool in_flight,
                    std::vector<BlockCopy>& copies);
  // The slots from which the sequence's next step takes its fixed states, and to which it writes them.
  BlockCopy write_states(SequenceBlocks& blocks);
  // Keeps the states that the step last planned gives, if there is a slot to go on with. in_output: they
  // stand behind all that was known of the sequence.
  void keep_states(SequenceBlocks& blocks, bool in_output);
  // A copy of another sequence's blocks gets states of its own, those where that one is. False: there is no
  // slot.
  bool fork_states(SequenceBlocks& blocks);
  // Adds to `restores` what is saved. Returns how many blocks.
  int restore(SequenceBlocks& blocks, std::vector<BlockCopy>& restores);
  // Enters the rows that are full, as far as their tokens are known, once their computation is planned: steps
  // run in order, so every later step may read them, even if this sequence is aborted meanwhile.
  void index(SequenceBlocks& blocks, std::span<const TokenId> tokens);

  // A step is planned, with all restores since the last one; those saves come first that are returned.
  // Its copies of states are put into `states`.
  std::vector<BlockCopy> close_step(StateCopies& states);
  // The oldest step is applied. True: blocks were given back.
  bool apply_step();
  // All steps in flight are lost, and the one in the making: nothing that is cached can be trusted.
  // forget_saved() must follow for every sequence.
  void lose_steps();

  // Saves the blocks behind those that others hold as well, if host memory has room for all of them and
  // `costs` speak for it; all blocks of a sequence that may share none, or that could not reach them through
  // the prefix cache: it has given back those before. Returns how many. They may be given back at once: the
  // next step saves before it does anything else.
  int save(SequenceBlocks& blocks, bool shares, const PreemptionCosts& costs);
  // Gives back what is saved but for the last num_kept rows. What was still to be saved there is not.
  void forget_saved(SavedBlocks& saved, int num_kept = 0);
  // The keys and values of `tokens`, with which the sequence begins, may be broken, those that it has given
  // back included: they are found no more.
  void distrust(const SequenceBlocks& blocks, std::span<const TokenId> tokens);

  // Whether its one holder may write it.
  bool may_be_written(BlockId block) const {
    return pool_.ref_count(block) == 1 && !prefix_cache_.contains(block);
  }
  // Whether a prompt that begins alike could find it there.
  bool is_cached(BlockId block) const { return prefix_cache_.contains(block); }
  bool is_checkpoint(BlockId slot) const { return states_.is_checkpoint(slot); }
  const BlockPool& pool() const { return pool_; }
  const BlockPool& host_pool() const { return host_pool_; }
  const BlockPool& state_slots() const { return states_.pool(); }

  // Throws InternalError where an invariant of docs/invariants.md does not hold. `all`: what all sequences
  // have.
  void check(std::span<const SequenceBlocks* const> all) const;

 private:
  int num_rows(const ComputedPrefix& computed) const {
    return static_cast<int>(computed.blocks.size()) / layout_.num_lanes();
  }
  void forget_row_to_write(const SequenceBlocks& blocks);
  void admit_states(SequenceStates& states, const ComputedPrefix& computed);
  void enter_kept(SequenceBlocks& blocks);
  void count_states(const SequenceBlocks& blocks, std::vector<int>& num_holders,
                    std::vector<int>& num_savers) const;

  CacheLayout layout_;
  BlockPool pool_;
  BlockPool host_pool_;
  PrefixCache prefix_cache_;
  StateCache states_;
  BlockPool host_slots_;
  StateCopies state_copies_;           // for the next step that is planned
  std::vector<BlockRef> state_reads_;  // slots that it reads: nobody else may write them in it
  bool caches_prefixes_;
  std::vector<BlockCopy> saves_;     // for the next step that is planned
  std::vector<BlockRef> restoring_;  // of host memory, what it restores
  // By step in flight: blocks that the next one replaces by copies, while this one or an earlier one may use
  // them. They are kept until it is applied.
  std::deque<std::vector<BlockRef>> replaced_;
};

}  // namespace quire
