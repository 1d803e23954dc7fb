#pragma once

// Tiles of the paged cache for attention.h: where a tile's rows lie, and a tile of codes as numbers.

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

// Elements that are loaded at once, as two vectors.
constexpr int kStep = 2 * kLanes;

// The scratch of one span. tile_*: a tile of codes as numbers [kKeyTile][width], and scales [kKeyTile].
struct AttentionScratch {
  std::int64_t width;  // head_dim, rounded up to steps
  float* queries;      // [rows][width]
  float* sums;         // [rows][width]
  float* scores;       // [rows][kKeyTile], then the weights
  float* tops;         // [rows] largest score so far
  float* totals;       // [rows] sum of the weights so far
  float* tile_keys;
  float* tile_values;
  float* key_scales;
  float* value_scales;

  AttentionScratch(float* memory, std::int64_t rows, std::int64_t head_dim)
      : width(round_up(head_dim, kStep)) {
    queries = memory;
    sums = queries + rows * width;
    scores = sums + rows * width;
    tops = scores + rows * kKeyTile;
    totals = tops + rows;
    key_scales = totals + rows;
    value_scales = key_scales + kKeyTile;
    tile_keys = value_scales + kKeyTile;
    tile_values = tile_keys + kKeyTile * width;
  }
};

struct Range {
  std::int64_t begin, end;
};

// Positions of one sequence, from a multiple of kKeyTile on.
struct KeyTile {
  std::int64_t begin, count;
  std::int64_t rows[kKeyTile];    // where each lies in the cache, in elements
  std::int64_t scales[kKeyTile];  // and its scale, where there are codes

  // Of the tile from `first` on, the positions [held.begin, held.end) are there.
  void locate(const CacheView& cache, const std::int32_t* blocks, std::int64_t first, Range held) {
    begin = first;
    count = held.end - begin < kKeyTile ? held.end - begin : kKeyTile;
    const std::int64_t absent = held.begin > begin ? held.begin - begin : 0;
    std::int64_t block = (begin + absent) / cache.block_size;
    std::int64_t offset = (begin + absent) % cache.block_size;
    for (std::int64_t j = absent; j < count; ++block, offset = 0) {
      std::int64_t row = blocks[block] * cache.block_stride + offset * cache.row_stride;
      for (; j < count && offset < cache.block_size; ++j, ++offset, row += cache.row_stride) {
        rows[j] = row;
        scales[j] = blocks[block] * cache.scale_block_stride + offset;
      }
    }
    // What nobody looks at.
    for (std::int64_t j = 0; j < absent; ++j) place_as(j, absent);
    for (std::int64_t j = count; j < kKeyTile; ++j) place_as(j, count - 1);
  }

 private:
  void place_as(std::int64_t j, std::int64_t other) {
    rows[j] = rows[other];
    scales[j] = scales[other];
  }
};

// A tile's keys and values of one head; or nothing. T: their elements, or codes.
template <typename T>
struct HeadTile {
  const KeyTile* positions = nullptr;
  const T* keys = nullptr;
  const T* values = nullptr;
  std::int64_t width = 0;             // of rows that lie one behind the other; 0: where the cache has them
  const float* key_scales = nullptr;  // [kKeyTile] or none
  const float* value_scales = nullptr;

  HeadTile() = default;
  HeadTile(const CacheView& cache, const KeyTile& tile, std::int64_t kv_head)
      : positions(&tile),
        keys(static_cast<const T*>(cache.keys) + kv_head * cache.head_stride),
        values(static_cast<const T*>(cache.values) + kv_head * cache.head_stride) {}

  const T* key(std::int64_t j) const { return keys + row(j); }
  const T* value(std::int64_t j) const { return values + row(j); }
  explicit operator bool() const { return positions != nullptr; }

 private:
  std::int64_t row(std::int64_t j) const { return width == 0 ? positions->rows[j] : j * width; }
};

// Brings some elements into the second cache. Inline, since GCC drops calls that do nothing else.
template <typename T>
[[gnu::always_inline]] inline void fetch(const T* p, std::int64_t n) {
  const auto* bytes = reinterpret_cast<const char*>(p);
  for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += 64)
    _mm_prefetch(bytes + i, _MM_HINT_T1);
}

// n codes as numbers, but for their scale and a power of two that belongs to it (code_factor). Writes whole
// vectors.
template <CacheCode kCode, typename T>
[[gnu::always_inline]] inline void widen_codes(const std::uint8_t* codes, std::int64_t n, T* to) {
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const Vec::I code = Vec::load_bytes(codes + i);
    if constexpr (kCode == CacheCode::kE5m2) {
      Vec::store_as(to + i, Vec::halves_to_floats(Vec::left(code, 8)));
    } else {
      // The upper bits of a binary16, which has a bias of 8 more.
      const Vec::I sign = Vec::left(Vec::bit_and(code, Vec::set1(0x80U)), 8);
      const Vec::I rest = Vec::left(Vec::bit_and(code, Vec::set1(0x7FU)), 7);
      Vec::store_as(to + i, Vec::halves_to_floats(Vec::bit_or(sign, rest)));
    }
  }
}
constexpr float code_factor(CacheCode code) { return code == CacheCode::kE4m3 ? 256.0F : 1.0F; }

// The tile of a KV head in numbers; meanwhile the next one's codes are fetched.
template <CacheCode kCode, typename T>
HeadTile<T> widened(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t kv_head,
                    const HeadTile<std::uint8_t>& tile, const HeadTile<std::uint8_t>& next) {
  HeadTile<T> numbers;
  auto* const keys = reinterpret_cast<T*>(scratch.tile_keys);
  auto* const values = reinterpret_cast<T*>(scratch.tile_values);
  const std::int64_t scale = kv_head * job.cache.scale_head_stride;
  for (std::int64_t j = 0; j < kKeyTile; ++j) {
    if (next) {
      fetch(next.key(j), job.head_dim);
      fetch(next.value(j), job.head_dim);
    }
    const std::int64_t place = scale + tile.positions->scales[j];
    scratch.key_scales[j] = job.cache.key_scales[place] * code_factor(kCode);
    scratch.value_scales[j] = job.cache.value_scales[place] * code_factor(kCode);
    widen_codes<kCode>(tile.key(j), job.head_dim, keys + j * scratch.width);
    widen_codes<kCode>(tile.value(j), job.head_dim, values + j * scratch.width);
  }
  numbers.positions = tile.positions;
  numbers.keys = keys;
  numbers.values = values;
  numbers.width = scratch.width;
  numbers.key_scales = scratch.key_scales;
  numbers.value_scales = scratch.value_scales;
  return numbers;
}

}  // namespace
}  // namespace quire::simd
