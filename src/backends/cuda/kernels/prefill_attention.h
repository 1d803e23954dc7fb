#pragma once

#include <cstdint>

#include "backends/cuda/kernels/attention.h"

namespace quire::cuda {

// What the two prefill kernels share. Both cut the query rows of a sequence and one KV head into tiles of up
// to kTileRows (token, head) pairs, a token's heads side by side, so that short chunks fill a tile, too.
constexpr int kTileRows = 128;

constexpr float kFarFromCap = 0.75F;

// One tile of one sequence; the same for all heads.
struct alignas(16) PrefillTile {
  int row;        // of q and out, of its first token
  int tokens;     // query tokens in it
  int position;   // of its first token in the sequence: that token sees position + 1 keys
  int table_row;  // of block_tables
};

// At the start of the workspace; the tiles follow in the order in which they are best started.
struct alignas(16) PrefillPlan {
  int num_tiles;
  int next;  // work that no block of threads has taken yet; every kernel leaves it 0
};

struct PrefillParams {
  void* out;
  const void* q;
  const void* keys;
  const void* values;
  const int* block_tables;
  PrefillPlan* plan;
  std::int64_t out_stride, q_stride, table_stride;  // in elements
  int block_stride, head_stride;                    // of the cache
  int group;                                        // query heads of a KV head
  int packed_heads;                                 // of them in one tile: a divisor of group
  int tile_tokens;                                  // at most, in one tile
  int head_tiles;   // tiles side by side for the same tokens: num_heads / packed_heads
  int block_shift;  // log2 of the block size
  ScoreArgs scores;
  float far_from_cap;  // a warp whose scores all lie below this share of the cap may use a polynomial
  CacheCode code;
  const float* key_scales;  // of codes, or null
  const float* value_scales;
  int scale_block_stride, scale_head_stride;
  int pieces = 1;          // in which each tile's keys are taken, side by side
  float* parts = nullptr;  // with more than one: PrefillPart by piece of (tile, head tile)
};

// What a piece leaves of a tile's rows: sums of values by weights that are not divided yet, the highest
// score in base 2, and the sum of the weights. In floats: sums [kTileRows, head_dim], tops [kTileRows],
// totals [kTileRows].
struct PrefillPart {
  float* sums;
  float* tops;
  float* totals;

  static constexpr std::size_t floats(int head_dim) {
    return static_cast<std::size_t>(kTileRows) * static_cast<std::size_t>(head_dim + 2);
  }
};

// How many tiles a batch may have at most, over all heads.
int max_prefill_work(const AttentionBatch& batch, const PrefillParams& params);

// By mma.sync, from compute capability 8.0 on.
void prefill_attention_mma(const LaunchContext& context, const PrefillParams& params,
                           const AttentionBatch& batch, const AttentionShape& shape, DType dtype);
// By wgmma and TMA, on compute capability 9.0 alone.
void prefill_attention_hopper(const LaunchContext& context, const PrefillParams& params,
                              const AttentionCall& call, const AttentionBatch& batch,
                              const AttentionShape& shape);

// Adds up the pieces that prefill_attention_hopper left of each tile, and writes out.
void merge_prefill(const LaunchContext& context, const PrefillParams& params, const AttentionBatch& batch,
                   const AttentionShape& shape, DType dtype);

// The parameters that prefill_attention passes to either, but for pieces.
PrefillParams prefill_params(const AttentionCall& call, const AttentionBatch& batch,
                             const AttentionShape& shape, PrefillOf of = PrefillOf::kChunks);

}  // namespace quire::cuda
