#pragma once

// Products of bfloat16 matrices by AMX: tiles of 16 tokens by 16 rows of weights, 32 values of k at a time.
// Every number of tokens takes this way, and an element is summed over k in order, in the order that
// TDPBF16PS has within 32 of them; so its value does not depend on the tokens beside it. Weights are used as
// they lie: a tile is 16 pairs of k of 16 rows.

#include "backends/cpu/simd/linear.h"

namespace quire::simd {
namespace {

constexpr std::int64_t kTile = 16;  // tokens, rows of weights, and pairs of k of a tile
constexpr std::int64_t kTileDepth = 2 * kTile;
constexpr std::int64_t kTiledDepth =
    512;  // k of a block: for half a panel of weights it fits the first cache

// All tiles whole: 16 rows of 64 bytes. 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

[[gnu::always_inline]] inline bool takes_tiles(const LinearJob& job) {
  return job.coded == nullptr && job.dtype == DType::kBF16 && job.x_dtype == DType::kBF16;
}

// Some columns of x, [tokens, rounded up to kTile][kTileDepth] for each kTileDepth of k.
void prepare_tiles(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  if (!takes_tiles(job)) {
    prepare_activations(job, begin, end);
    return;
  }
  const std::int64_t depth = block_depth(job.tokens);
  const std::int64_t last = end * depth < job.in_features ? end * depth : job.in_features;
  for (std::int64_t k = begin * depth; k < last; k += kTileDepth) {
    const std::int64_t count = last - k < kTileDepth ? last - k : kTileDepth;
    auto* to = reinterpret_cast<BFloat16*>(job.activations) + k * round_up(job.tokens, kTile);
    for (std::int64_t t = 0; t < job.tokens; ++t, to += kTileDepth) {
      if (count < kTileDepth) __builtin_memset(to, 0, kTileDepth * sizeof(BFloat16));
      __builtin_memcpy(to, static_cast<const BFloat16*>(job.x) + t * job.x_stride + k,
                       static_cast<std::size_t>(count) * sizeof(BFloat16));
    }
  }
}

// Tokens times rows of weights, both in whole tiles.
struct TileOperands {
  float* sums;          // [tokens][kPanel]
  const float* a;       // [steps][tokens][kTile], pairs
  std::int64_t a_step;  // pairs from step to step
  const std::byte* b;   // [steps][kTile][rows], pairs
  std::int64_t b_row;   // bytes from one pair of k to the next
  std::int64_t steps;
};

constexpr std::int64_t kSumsRow = kPanel * sizeof(float);

// One tile of tokens by up to four of rows: a panel of weights is read once. (The intrinsics want literals.)
void multiply_row_of_tiles(std::int64_t row_tiles, const TileOperands& o) {
  _tile_loadd(0, o.sums, kSumsRow);
  if (row_tiles > 1) _tile_loadd(1, o.sums + kTile, kSumsRow);
  if (row_tiles > 2) _tile_loadd(2, o.sums + 2 * kTile, kSumsRow);
  if (row_tiles > 3) _tile_loadd(3, o.sums + 3 * kTile, kSumsRow);
  for (std::int64_t s = 0; s < o.steps; ++s) {
    const std::byte* b = o.b + s * kTile * o.b_row;
    _tile_loadd(4, o.a + s * o.a_step, 64);
    _tile_loadd(6, b, o.b_row);
    _tile_dpbf16ps(0, 4, 6);
    if (row_tiles > 1) {
      _tile_loadd(7, b + 64, o.b_row);
      _tile_dpbf16ps(1, 4, 7);
    }
    if (row_tiles > 2) {
      _tile_loadd(6, b + 128, o.b_row);
      _tile_dpbf16ps(2, 4, 6);
    }
    if (row_tiles > 3) {
      _tile_loadd(7, b + 192, o.b_row);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  _tile_stored(0, o.sums, kSumsRow);
  if (row_tiles > 1) _tile_stored(1, o.sums + kTile, kSumsRow);
  if (row_tiles > 2) _tile_stored(2, o.sums + 2 * kTile, kSumsRow);
  if (row_tiles > 3) _tile_stored(3, o.sums + 3 * kTile, kSumsRow);
}

// Two tiles of tokens by two of rows: half as much is loaded for a product.
void multiply_square_of_tiles(const TileOperands& o) {
  float* const lower = o.sums + kTile * kPanel;
  _tile_loadd(0, o.sums, kSumsRow);
  _tile_loadd(1, o.sums + kTile, kSumsRow);
  _tile_loadd(2, lower, kSumsRow);
  _tile_loadd(3, lower + kTile, kSumsRow);
  for (std::int64_t s = 0; s < o.steps; ++s) {
    const float* a = o.a + s * o.a_step;
    const std::byte* b = o.b + s * kTile * o.b_row;
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, o.b_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + 64, o.b_row);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, a + kTile * kTile, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, o.sums, kSumsRow);
  _tile_stored(1, o.sums + kTile, kSumsRow);
  _tile_stored(2, lower, kSumsRow);
  _tile_stored(3, lower + kTile, kSumsRow);
}

// All tokens, a multiple of kTile, by all rows of a panel.
void multiply_tiles(std::int64_t tokens, std::int64_t rows, const TileOperands& o) {
  std::int64_t token = 0;
  if (rows == kPanel) {
    for (std::int64_t row = 0; row < rows; row += 2 * kTile) {
      for (token = 0; token + 2 * kTile <= tokens; token += 2 * kTile) {
        multiply_square_of_tiles(
            {o.sums + token * kPanel + row, o.a + token * kTile, o.a_step, o.b + row * 4, o.b_row, o.steps});
      }
    }
  }
  for (; token < tokens; token += kTile) {
    multiply_row_of_tiles(rows / kTile,
                          {o.sums + token * kPanel, o.a + token * kTile, o.a_step, o.b, o.b_row, o.steps});
  }
}

void multiply_panels_by_tiles(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const TileConfig config;
  _tile_loadconfig(&config);
  const std::int64_t tokens = round_up(job.tokens, kTile);
  const std::int64_t depth = round_up(job.in_features, 2);
  const std::int64_t whole = depth / kTileDepth * kTileDepth;
  const std::int64_t a_step = tokens * kTile;
  auto* const last = reinterpret_cast<std::byte*>(scratch + kMaxPassTokens * kPanel);  // step of a panel
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel;
    const std::int64_t left = round_up(job.out_features - first_row, kPanelStep);
    const std::int64_t rows = left < kPanel ? left : kPanel;
    const std::int64_t b_row = rows * 4;
    const std::byte* weights = job.weights + first_row * depth * 2;
    __builtin_memset(scratch, 0, static_cast<std::size_t>(tokens * kPanel) * sizeof(float));
    for (std::int64_t k = 0; k < whole; k += kTiledDepth) {
      const std::int64_t count = whole - k < kTiledDepth ? whole - k : kTiledDepth;
      multiply_tiles(tokens, rows,
                     {scratch, job.activations + k / 2 * tokens, a_step, weights + k / 2 * b_row, b_row,
                      count / kTileDepth});
    }
    if (whole < depth) {  // what lies behind the panel may be anything
      const auto bytes = static_cast<std::size_t>((depth - whole) / 2 * b_row);
      __builtin_memset(last, 0, static_cast<std::size_t>(kTile * b_row));
      __builtin_memcpy(last, weights + whole / 2 * b_row, bytes);
      multiply_tiles(tokens, rows, {scratch, job.activations + whole / 2 * tokens, a_step, last, b_row, 1});
    }
    store_sums(job, first_row, scratch);
  }
  _tile_release();
}

void linear_by_tiles(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  takes_tiles(job) ? multiply_panels_by_tiles(job, begin, end, scratch)
                   : linear_panels(job, begin, end, scratch);
}

}  // namespace
}  // namespace quire::simd
