#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/ids.h"

namespace quire {

// How the blocks of the KV cache hold a sequence. Layers that keep the same of it form a group; as many of a
// group's layers as fit in a block make a lane. A sequence's block table has a row for every block_size
// tokens and a column for every lane, and each lane holds on to its own window alone.
struct CacheLayout {
  static constexpr int kMaxTokens = 1 << 30;  // of a sequence, so that sums of a few lengths stay integers

  int block_size = 16;             // tokens; a power of two, 8 to 256
  std::vector<int> windows = {0};  // by lane: tokens a position attends to, itself included; 0: all
  // Fixed states are kept behind multiples of so many tokens alone, whole rows: a backend may compute prompts
  // in chunks. 0: there are none.
  int state_interval = 0;

  int num_lanes() const { return static_cast<int>(windows.size()); }
  // The lane that looks back farthest.
  int farthest_lane() const;
  int rows_for(int num_tokens) const { return (num_tokens + block_size - 1) / block_size; }
  // How many of the first rows no position from `position` on attends to in this lane.
  int num_outside(int lane, int position) const {
    const int window = windows[lane];
    return window == 0 || position < window ? 0 : (position + 1 - window) / block_size;
  }
  // How many of the first rows they attend to in no lane.
  int num_outside_all(int position) const { return num_outside(farthest_lane(), position); }
  // Whether some lane's window covers a row at position `from` and not at position `to`.
  bool leaves_rows(int from, int to) const;
  // Pairs in one layer of a token and one it attends to, itself included, of `count` tokens behind `first`.
  std::uint64_t attention_pairs(int lane, int first, int count) const;
  // The most blocks that a sequence holds while it grows to `length` tokens, if `span` at a time are
  // computed. It starts at `position` with num_rows rows, of which it holds what its windows cover.
  std::int64_t blocks_held(int length, int span, int position = 0, int num_rows = 0) const;
  // Tokens that a sequence may have if it has num_blocks for itself, in small steps if it must.
  int longest(int num_blocks) const;
  // Of a table [n, num_lanes].
  std::span<const BlockId> row(std::span<const BlockId> table, int index) const {
    const auto lanes = windows.size();
    return table.subspan(static_cast<std::size_t>(index) * lanes, lanes);
  }
  bool operator==(const CacheLayout&) const = default;
};

// How much of a cache there is.
struct CacheSizes {
  int num_blocks = 0;
  int num_host_blocks = 0;       // in host memory, for what preempted sequences had in theirs
  int num_state_slots = 0;       // of fixed states; 0: the model's layers have none
  int num_host_state_slots = 0;  // in host memory
};

}  // namespace quire
