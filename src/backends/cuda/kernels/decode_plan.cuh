#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/attention_batch.h"

// How paged decode attention is divided over the device.
//
// An item is a sequence and a KV head (or, where a KV head has more than 16 query heads, a part of them). The
// tiles of all items lie on one line, which is cut into equal shares, one a block of threads, whatever the
// lengths. So an item may be divided into pieces, one a share.
namespace quire::cuda {

constexpr int kTileTokens = 16;  // what a warp takes at a time
constexpr int kBlocksPerSm = 2;  // blocks of threads
constexpr int kMinShare = 8;     // tiles: a smaller share costs more in merging than it gains

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// How the query heads of a KV head are cut into items.
struct HeadSplit {
  explicit HeadSplit(const AttentionShape& shape)
      : group(shape.num_heads / shape.num_kv_heads),
        head_tiles(group > 8 ? 2 : 1),
        items_per_kv_head(ceil_div(group, 8 * head_tiles)),
        heads_per_item(ceil_div(group, items_per_kv_head)),
        items_per_row(shape.num_kv_heads * items_per_kv_head) {}

  int group;
  int head_tiles;  // of 8 query heads
  int items_per_kv_head;
  int heads_per_item;
  int items_per_row;
};

// A sequence that takes part.
struct alignas(16) DecodeRow {
  int seq_len;
  int table_row;
  int query_row;
  int first_tile;  // of its first item, on the line of all tiles
};

// What one block of threads computes: items [first_item, last_item], the first from tile first_tile on, the
// last up to last_end. Item = row * items_per_row + KV head * items_per_kv_head + part of the query heads.
struct alignas(16) DecodeShare {
  int first_item;  // -1: nothing to do
  int first_tile;
  int last_item;
  int last_end;
  DecodeRow last_row;  // of last_item, with which the work begins
};

// The parts of the workspace.
struct DecodePlan {
  int* share_tiles;     // tiles of each share but the last
  DecodeShare* shares;  // [num_shares]
  DecodeRow* rows;      // [max_num_seqs]
  int* arrived;         // [num_shares] pieces ready of the divided item that begins in this share; else 0
  float2* weights;      // [2 * num_shares, heads_per_item] maximum and sum of each piece
  float* sums;          // [2 * num_shares, heads_per_item, head_dim] not yet divided by that sum
};

inline int num_shares(int num_sms) { return kBlocksPerSm * num_sms; }

// Lays the plan out from address `base`; the bytes go to `bytes`.
inline DecodePlan lay_out_plan(std::uintptr_t base, const AttentionShape& shape, int num_sms,
                               std::size_t& bytes) {
  const auto shares = static_cast<std::size_t>(num_shares(num_sms));
  const std::size_t pieces = 2 * shares * static_cast<std::size_t>(HeadSplit(shape).heads_per_item);
  bytes = 0;
  const auto take = [&]<typename T>(T*& part, std::size_t count) {
    part = reinterpret_cast<T*>(base + bytes);
    bytes += (count * sizeof(T) + 255) / 256 * 256;
  };
  DecodePlan plan{};
  take(plan.share_tiles, 1);
  take(plan.shares, shares);
  take(plan.rows, static_cast<std::size_t>(shape.max_num_seqs));
  take(plan.arrived, shares);
  take(plan.weights, pieces);
  take(plan.sums, pieces * static_cast<std::size_t>(shape.head_dim));
  return plan;
}

}  // namespace quire::cuda
