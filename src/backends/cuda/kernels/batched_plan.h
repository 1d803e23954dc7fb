#pragma once

#include <algorithm>

#include "backends/cuda/kernels/linear.h"

namespace quire::cuda {

// How batched_matmul cuts a product into tiles and parts of k.
struct BatchedPlan {
  static constexpr int kGroupRows = 64;  // of the weight, of a warpgroup
  static constexpr int kMaxGroups = 2;
  static constexpr int kRowBytes = 128;  // of a slice, as swizzling wants them: 64 columns, or 128 of codes
  static constexpr int kMaxStages = 16;
  static constexpr int kTileTokens = 64;             // at most, but of wide tiles
  static constexpr int kCodeTileTokens = 96;         // of codes
  static constexpr int kWideTileTokens = 128;        // of 16 bits: operands leave shared memory half as often
  static constexpr int kMaxSharedBytes = 222 << 10;  // of one block
  static constexpr int kHalfSharedBytes = 112 << 10;  // so that a block of the next product fits beside it
  static constexpr int kThirdSharedBytes = 74 << 10;

  int tile_tokens;
  int groups;  // warpgroups of a block
  int split;   // blocks along k
  int stages;

  int stage_bytes() const { return (groups * kGroupRows + tile_tokens) * kRowBytes; }
};

// tokens by rows of the weight, over `slices` of k. Found by timing products in graphs. In any order, of 17
// to 256 tokens: narrow tiles and many blocks beat wide tiles that are split; a split pays where k is long,
// and never beyond 4. A block has a multiprocessor alone where it is merged of two or where blocks are few,
// and where it is not split and each has one: all of k is then in its ring, or long on its way. Three share
// one where only so all have a place at once; else two do, of a product or of the next one too. In a fixed
// order the same split must do for one token, which wants more, and for thousands, for which a split of 2
// costs a fifth; there the tiles are the largest that make blocks enough, and fewer blocks than
// multiprocessors have deep rings. Codes are in any order and never merged.
inline BatchedPlan plan_batched_matmul(int tokens, int rows, int slices, SumOrder order,
                                       bool of_codes = false) {
  constexpr int kMultiprocessors = 132;
  constexpr int kFewBlocks = 96;
  constexpr int kSplitSlices = 16;                     // of k: more of them are split
  constexpr int kLongSlices = 32;                      // of k: a block reads for long
  constexpr int kSplitBlocks = 192;                    // by splitting: at most, or of codes nearly
  constexpr int kSingleBlocks = 3 * kMultiprocessors;  // more are merged
  using P = BatchedPlan;
  const int row_groups = ceil_div(rows, P::kGroupRows);
  const int token_tiles = ceil_div(tokens, of_codes ? P::kCodeTileTokens : P::kTileTokens);
  P plan{};
  plan.tile_tokens = std::max(ceil_div(ceil_div(tokens, token_tiles), 16) * 16, 32);
  if (plan.tile_tokens > P::kTileTokens) plan.tile_tokens = P::kCodeTileTokens;
  const auto blocks = [&](int groups, int tile_tokens) {
    return ceil_div(row_groups, groups) * ceil_div(tokens, tile_tokens) * plan.split;
  };
  int most_bytes = P::kHalfSharedBytes;
  if (order == SumOrder::kFixed) {
    plan.split = slices >= 2 * row_groups ? 2 : 1;
    if (tokens > P::kTileTokens && blocks(P::kMaxGroups, P::kWideTileTokens) >= kFewBlocks)
      plan.tile_tokens = P::kWideTileTokens;
    plan.groups = blocks(P::kMaxGroups, plan.tile_tokens) >= kFewBlocks ? P::kMaxGroups : 1;
    if (blocks(plan.groups, plan.tile_tokens) <= kMultiprocessors) {
      most_bytes = P::kMaxSharedBytes;
    } else if (tokens <= P::kTileTokens) {
      most_bytes = P::kThirdSharedBytes;
    }
  } else {
    const int unsplit = row_groups * token_tiles;
    const int rounding = of_codes ? unsplit / 2 : 0;  // to the nearest
    plan.split = slices > kSplitSlices ? std::clamp((kSplitBlocks + rounding) / unsplit, 1, 4) : 1;
    plan.groups = !of_codes && unsplit > kSingleBlocks ? P::kMaxGroups : 1;
    const int count = unsplit * plan.split;
    const bool is_long = plan.split == 1 && (plan.tile_tokens > 32 || slices >= kLongSlices);
    if (2 * count <= kMultiprocessors || (is_long && count <= kMultiprocessors) || plan.groups > 1) {
      most_bytes = P::kMaxSharedBytes;
    } else if (unsplit > 2 * kMultiprocessors) {
      most_bytes = P::kThirdSharedBytes;
    }
  }
  plan.stages = std::min({P::kMaxStages, ceil_div(slices, plan.split), most_bytes / plan.stage_bytes()});
  return plan;
}

}  // namespace quire::cuda
