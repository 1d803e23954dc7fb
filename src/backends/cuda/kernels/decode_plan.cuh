#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cuda/kernels/attention.h"

// How paged decode attention is divided over the device.
//
// An item is what a sequence's query sees, the whole sequence or its last positions, and a KV head (or, where
// a KV head has more than 16 query heads, a part of them). The tiles of all items lie on one line, which is
// cut into equal shares, one a block of threads, whatever the lengths. So an item may be divided into pieces,
// one a share.
namespace quire::cuda {

constexpr int kTileTokens = 16;  // what a warp takes at a time

// Blocks of threads on an SM, where its shared memory has room for them. Tiles of codes come twice as fast,
// and more warps hide what each takes.
constexpr int blocks_per_sm(CacheCode code, int head_tiles) {
  return code != CacheCode::kNone && head_tiles == 1 ? 3 : 2;
}

// How the query heads of a KV head are cut into items.
struct HeadSplit {
  explicit HeadSplit(const AttentionShape& shape) : HeadSplit(shape.num_heads, shape.num_kv_heads) {}
  HeadSplit(int num_heads, int num_kv_heads)
      : group(num_heads / num_kv_heads),
        head_tiles(group > 8 ? 2 : 1),
        parts(ceil_div(group, 8 * head_tiles)),
        heads_per_item(ceil_div(group, parts)) {}

  int group;
  int head_tiles;  // of 8 query heads
  int parts;       // items of a KV head
  int heads_per_item;
};

// Calls f.template operator()<kDim, kHeadTiles>(), as dispatch_head_dim.
template <typename F>
bool dispatch_heads(int head_dim, int head_tiles, F&& f) {
  return dispatch_head_dim(head_dim, [&]<int kDim>() {
    head_tiles == 1 ? f.template operator()<kDim, 1>() : f.template operator()<kDim, 2>();
  });
}

// A sequence that takes part.
struct alignas(16) DecodeRow {
  int seq_len;
  int table_row;
  int query_row;
  int line_begin;  // of its first item, on the line of all tiles
};

// A tile of an item.
struct alignas(16) DecodePosition {
  int row;
  int kv_head;
  int part;
  int tile;  // of what the sequence's query sees; see first_tile
};

// What one block of threads computes: from tile first.tile of one item up to before tile last.tile of the
// same or a later one.
struct alignas(16) DecodeShare {
  DecodePosition first;
  DecodePosition last;
  DecodeRow last_row;  // that of `last`, with which the work begins
  int num_pieces;      // 0: nothing to do
};

// What all shares have in common.
struct alignas(16) DecodeHeader {
  int share_tiles;  // of the line, in each share but the last
  int item_lead;    // places in front of an item's first tile: its end costs as much as so many tiles
  int item_align;   // the places of an item are a multiple of it

  __host__ __device__ int line_length(int tiles) const {
    return ceil_div(item_lead + tiles, item_align) * item_align;
  }
};

// The parts of the workspace.
struct DecodePlan {
  DecodeHeader* header;
  DecodeShare* shares;  // [num_shares]
  DecodeRow* rows;      // [max_num_seqs]
  int* arrived;         // [num_shares] pieces ready of the divided item that begins in this share; else 0
  float2* weights;      // [2 * num_shares, heads_per_item] maximum and sum of each piece
  float* sums;          // [2 * num_shares, heads_per_item, head_dim] not yet divided by that sum
};

inline int num_shares_of(const AttentionShape& shape, int num_sms) {
  return blocks_per_sm(shape.code, HeadSplit(shape).head_tiles) * num_sms;
}

// Lays the plan out from address `base`; the bytes go to `bytes`.
inline DecodePlan lay_out_plan(std::uintptr_t base, const AttentionShape& shape, int num_sms,
                               std::size_t& bytes) {
  const auto num_shares = static_cast<std::size_t>(num_shares_of(shape, num_sms));
  const std::size_t pieces = 2 * num_shares * static_cast<std::size_t>(HeadSplit(shape).heads_per_item);
  bytes = 0;
  const auto take = [&]<typename T>(T*& part, std::size_t count) {
    part = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
  };
  DecodePlan plan{};
  take(plan.header, 1);
  take(plan.shares, num_shares);
  take(plan.rows, static_cast<std::size_t>(shape.max_num_seqs));
  take(plan.arrived, num_shares);
  take(plan.weights, pieces);
  take(plan.sums, pieces * static_cast<std::size_t>(shape.head_dim));
  return plan;
}

// The first position that a sequence's last token sees.
__host__ __device__ inline int first_key(int seq_len, int window) {
  return seq_len > window ? seq_len - window : 0;
}
// The tile of the sequence in which it lies; an item's tiles are numbered from there.
__host__ __device__ inline int first_tile(int seq_len, int window) {
  return first_key(seq_len, window) / kTileTokens;
}
__host__ __device__ inline int item_tiles(int seq_len, int window) {
  return ceil_div(seq_len, kTileTokens) - first_tile(seq_len, window);
}

}  // namespace quire::cuda
