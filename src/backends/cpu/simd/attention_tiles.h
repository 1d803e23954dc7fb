#pragma once

// Tiles of the paged cache for attention.h: where a tile's rows lie, and a tile of codes as numbers.

#include "backends/cpu/simd/coded_words.h"

namespace quire::simd {
namespace {

// Elements that are loaded at once, as two vectors.
constexpr int kStep = 2 * kLanes;

// The elements of a step of which only some are there; the others are zero.
template <typename T>
struct PartialStep {
  T values[kStep] = {};
  void read(const T* p, std::int64_t count) {
    __builtin_memcpy(values, p, static_cast<std::size_t>(count) * sizeof(T));
  }
};

// The scratch of one span. tile_*: a tile of codes as numbers of 16 bits [kKeyTile][width].
struct AttentionScratch {
  std::int64_t rows;
  std::int64_t width;                      // head_dim, rounded up to steps
  float* queries;                          // [rows][width]; the others lie behind it
  float* sums = queries + rows * width;    // [rows][width]
  float* scores = sums + rows * width;     // [rows][kKeyTile], then the weights
  float* tops = scores + rows * kKeyTile;  // [rows] largest score so far
  float* totals = tops + rows;             // [rows] sum of the weights so far
  float* key_scales = totals + rows;       // [kKeyTile] of the tile of codes
  float* value_scales = key_scales + kKeyTile;
  float* tile_keys = value_scales + kKeyTile;
  float* tile_values = tile_keys + kKeyTile * width / 2;
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
    count = smaller(held.end - begin, kKeyTile);
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
  const float* key_scales = nullptr;  // of codes those of the cache, of what they became [kKeyTile]; or null
  const float* value_scales = nullptr;
  std::int64_t width = 0;  // of rows that lie one behind the other; 0: where the cache has them

  static HeadTile of(const CacheView& cache, const KeyTile& tile, std::int64_t kv_head) {
    return {&tile, static_cast<const T*>(cache.keys) + kv_head * cache.head_stride,
            static_cast<const T*>(cache.values) + kv_head * cache.head_stride,
            cache.key_scales + kv_head * cache.scale_head_stride,
            cache.value_scales + kv_head * cache.scale_head_stride};
  }
  const T* key(std::int64_t j) const { return keys + row(j); }
  const T* value(std::int64_t j) const { return values + row(j); }
  explicit operator bool() const { return positions != nullptr; }

 private:
  std::int64_t row(std::int64_t j) const { return width == 0 ? positions->rows[j] : j * width; }
};

// What codes become for queries of type T: float16, which is their bits at other places, or bfloat16 where
// the processor multiplies pairs of it. Both hold every code's number. kCodes at a time.
template <typename T>
struct WidenedCode {
  using Type = Float16;
  static constexpr std::int64_t kCodes = kStep;
};

// Some codes, at most kCodes, as numbers.
template <CacheCode kCode>
[[gnu::always_inline]] inline void widen_codes(const std::uint8_t* codes, std::int64_t count, Float16* to) {
  PartialStep<std::uint8_t> last;
  if (count < kStep) last.read(codes, count);
  Vec::widen_bytes<kCode == CacheCode::kE4m3>(count < kStep ? last.values : codes, to);
}
// What such numbers must be multiplied with: float16's bias is 8 more than E4M3's.
template <CacheCode kCode>
constexpr float code_factor(const Float16* /*type*/) {
  return kCode == CacheCode::kE4m3 ? 256.0F : 1.0F;
}

#if defined(__AVX512BF16__)
template <>
struct WidenedCode<BFloat16> {
  using Type = BFloat16;
  static constexpr std::int64_t kCodes = 64;
};

// The bytes of each are looked up. Eight codes and the eight 32 behind them go to one quarter of a vector,
// where bytes are put together.
template <CacheCode kCode>
[[gnu::always_inline]] inline void widen_codes(const std::uint8_t* codes, std::int64_t count, BFloat16* to) {
  constexpr const PairTable& kTable = kCode == CacheCode::kE4m3 ? kE4m3Pairs : kE5m2Pairs;
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const __m512i in_order = count < 64 ? _mm512_maskz_loadu_epi8((std::uint64_t{1} << count) - 1, codes)
                                      : _mm512_loadu_si512(codes);
  const __m512i code = _mm512_permutexvar_epi64(order, in_order);
  const __m512i lower = PairTable::look_up(kTable.lower, code);
  const __m512i upper = PairTable::with_sign(PairTable::look_up(kTable.upper, code), code);
  _mm512_storeu_si512(to, _mm512_unpacklo_epi8(lower, upper));
  if (count > 32) _mm512_storeu_si512(to + 32, _mm512_unpackhi_epi8(lower, upper));
}
template <CacheCode kCode>
constexpr float code_factor(const BFloat16* /*type*/) {
  return 1;
}
#endif

// The keys of a tile, or its values, in numbers [kKeyTile][width].
template <CacheCode kCode, std::int64_t kCodes, typename T>
void widen_rows(const std::uint8_t* codes, const KeyTile& tile, std::int64_t head_dim, T* to) {
  const std::int64_t width = round_up(head_dim, kStep);
  for (std::int64_t i = 0; i < head_dim; i += kCodes) {
    const auto widen = [&](std::int64_t count) __attribute__((always_inline)) {
      for (std::int64_t j = 0; j < kKeyTile; ++j)
        widen_codes<kCode>(codes + tile.rows[j] + i, count, to + j * width + i);
    };
    head_dim - i < kCodes ? widen(head_dim - i) : widen(kCodes);
  }
}

// A tile of codes in numbers; meanwhile the next one's scales are fetched, of which a line of memory
// holds 16.
template <CacheCode kCode, std::int64_t kCodes, typename T>
HeadTile<T> widened(const AttentionJob& job, const AttentionScratch& scratch,
                    const HeadTile<std::uint8_t>& tile, const HeadTile<std::uint8_t>& next) {
  constexpr float kFactor = code_factor<kCode>(static_cast<const T*>(nullptr));
  auto* const keys = reinterpret_cast<T*>(scratch.tile_keys);
  auto* const values = reinterpret_cast<T*>(scratch.tile_values);
  for (std::int64_t j = 0; j < kKeyTile; ++j) {
    if (next && j % 16 == 0) {
      fetch(next.key_scales + next.positions->scales[j], 1);
      fetch(next.value_scales + next.positions->scales[j], 1);
    }
    scratch.key_scales[j] = tile.key_scales[tile.positions->scales[j]] * kFactor;
    scratch.value_scales[j] = tile.value_scales[tile.positions->scales[j]] * kFactor;
  }
  widen_rows<kCode, kCodes>(tile.keys, *tile.positions, job.head_dim, keys);
  widen_rows<kCode, kCodes>(tile.values, *tile.positions, job.head_dim, values);
  return {tile.positions, keys, values, scratch.key_scales, scratch.value_scales, scratch.width};
}

}  // namespace
}  // namespace quire::simd
