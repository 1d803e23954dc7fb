#pragma once

// Attention over the paged cache. For one KV head and the rows of its query heads over some tokens: a tile of
// 64 keys at a time, scores = q · kᵀ, online softmax (Milakov and Gimelshein, 2018), sums += weights · v.
// Tiles begin at multiples of 64 positions and a row goes through those of its own context alone, in order,
// so its value does not depend on which rows share the item. Decode is an item of one token. Nothing beyond a
// row's context is read into it.

#include "backends/cpu/simd/matmul.h"

namespace quire::simd {
namespace {

// The scratch of one item.
struct AttentionScratch {
  std::int64_t width;  // head_dim, rounded up
  float* keys;         // [head_dim][kKeyTile]
  float* values;       // [kKeyTile][width]
  float* queries;      // [rows][width]
  float* sums;         // [rows][width]
  float* scores;       // [rows][kKeyTile]
  float* tops;         // [rows] largest score so far
  float* totals;       // [rows] sum of the weights so far

  AttentionScratch(float* memory, std::int64_t rows, std::int64_t head_dim)
      : width(round_up(head_dim, kPanelStep)) {
    keys = memory;
    values = keys + kKeyTile * width;
    queries = values + kKeyTile * width;
    sums = queries + rows * width;
    scores = sums + rows * width;
    tops = scores + rows * kKeyTile;
    totals = tops + rows;
  }
};

[[gnu::always_inline]] inline __m256 load_eight(const float* p) { return _mm256_loadu_ps(p); }
[[gnu::always_inline]] inline __m256 load_eight(const BFloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
[[gnu::always_inline]] inline __m256 load_eight(const Float16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Eight elements of each of eight rows become eight columns of `to` [8][kKeyTile].
template <typename T>
void transpose_eight(const T* const* rows, std::int64_t offset, float* to) {
  __m256 r[8], p[8];
  for (int i = 0; i < 8; ++i) r[i] = load_eight(rows[i] + offset);
  for (int i = 0; i < 4; ++i) {
    p[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    p[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(p[4 * i], p[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(p[4 * i], p[4 * i + 2], 0xEE);
    r[4 * i + 2] = _mm256_shuffle_ps(p[4 * i + 1], p[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(p[4 * i + 1], p[4 * i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * kKeyTile, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * kKeyTile, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// Positions [begin, begin + count) of the cache as float32: keys transposed, values row by row.
template <typename T>
void load_tile(const AttentionJob& job, const AttentionItem& item, std::int64_t begin, std::int64_t count,
               const AttentionScratch& scratch) {
  const CacheView& cache = job.cache;
  const T* keys[kKeyTile];
  std::int64_t block = begin / cache.block_size;
  std::int64_t offset = begin % cache.block_size;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t row = item.blocks[block] * cache.block_stride + item.kv_head * cache.head_stride +
                             offset * cache.row_stride;
    keys[j] = static_cast<const T*>(cache.keys) + row;
    const T* value = static_cast<const T*>(cache.values) + row;
    for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
      Vec::store(scratch.values + j * scratch.width + i, load_some(value + i, lanes_left(i, job.head_dim)));
    }
    if (++offset == cache.block_size) {
      offset = 0;
      ++block;
    }
  }
  const std::int64_t padded = round_up(count, 8);
  for (std::int64_t j = count; j < padded; ++j) keys[j] = keys[0];  // columns that nobody looks at
  for (std::int64_t j = 0; j < padded; j += 8) {
    std::int64_t i = 0;
    for (; i + 8 <= job.head_dim; i += 8) transpose_eight(keys + j, i, scratch.keys + i * kKeyTile + j);
    for (; i < job.head_dim; ++i) {
      for (std::int64_t lane = j; lane < j + 8; ++lane) {
        T one[kLanes] = {};
        one[0] = keys[lane][i];
        float widened[kLanes];
        Vec::store(widened, Vec::load_as(one));
        scratch.keys[i * kKeyTile + lane] = widened[0];
      }
    }
  }
}

// Turns the first `valid` scores of a row into weights, the others into zeros, and scales what was summed
// before.
void weigh(const AttentionScratch& scratch, std::int64_t row, std::int64_t valid, float scale) {
  float* scores = scratch.scores + row * kKeyTile;
  const F lowest = Vec::set1(-__builtin_inff());
  F top = lowest;
  for (std::int64_t j = 0; j < kKeyTile; j += kLanes) {
    const F scaled = Vec::mul(Vec::load(scores + j), Vec::set1(scale));
    const F score = Vec::first_lanes(static_cast<int>(valid - j), scaled, lowest);
    Vec::store(scores + j, score);
    top = Vec::max(top, score);
  }
  const float highest = max_lanes(top);
  const float old_top = scratch.tops[row];
  const float new_top = highest > old_top ? highest : old_top;
  F total = Vec::zero();
  for (std::int64_t j = 0; j < kKeyTile; j += kLanes) {
    const F weight = exp(Vec::sub(Vec::load(scores + j), Vec::set1(new_top)));
    Vec::store(scores + j, weight);
    total = Vec::add(total, weight);
  }
  const F factor = exp(Vec::set1(old_top - new_top));
  float factors[kLanes];
  Vec::store(factors, factor);
  scratch.tops[row] = new_top;
  scratch.totals[row] = scratch.totals[row] * factors[0] + sum_lanes(total);
  float* sums = scratch.sums + row * scratch.width;
  for (std::int64_t i = 0; i < scratch.width; i += kLanes)
    Vec::store(sums + i, Vec::mul(Vec::load(sums + i), factor));
}

// One tile, for the item's tokens from `first` on; token t sees valid_of(t) of its positions.
template <typename ValidOf>
void attend_tile(const AttentionJob& job, std::int64_t first, std::int64_t num_tokens,
                 const ValidOf& valid_of, const AttentionScratch& scratch) {
  const std::int64_t group = job.group;
  const std::int64_t begin = first * group;
  const std::int64_t end = num_tokens * group;
  float* scores = scratch.scores + begin * kKeyTile;
  __builtin_memset(scores, 0, static_cast<std::size_t>((end - begin) * kKeyTile) * sizeof(float));
  multiply<WeightsF32>(end - begin, kKeyTile,
                       {scores, kKeyTile, scratch.queries + begin * scratch.width, scratch.width,
                        reinterpret_cast<const std::byte*>(scratch.keys), kKeyTile * 4, job.head_dim});
  for (std::int64_t row = begin; row < end; ++row) weigh(scratch, row, valid_of(row / group), job.scale);
  // Rows that see as many positions go together.
  for (std::int64_t t = first; t < num_tokens;) {
    const std::int64_t valid = valid_of(t);
    std::int64_t next = t + 1;
    while (next < num_tokens && valid_of(next) == valid) ++next;
    const std::int64_t row = t * group;
    multiply<WeightsF32>(
        (next - t) * group, scratch.width,
        {scratch.sums + row * scratch.width, scratch.width, scratch.scores + row * kKeyTile, kKeyTile,
         reinterpret_cast<const std::byte*>(scratch.values), scratch.width * 4, valid});
    t = next;
  }
}

template <typename T>
void attend(const AttentionJob& job, const AttentionItem& item, const AttentionScratch& scratch) {
  const std::int64_t rows = item.num_tokens * job.group;
  const auto column_of = [&](std::int64_t row) {
    return (item.kv_head * job.group + row % job.group) * job.head_dim;
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* query =
        static_cast<const T*>(job.q) + (item.first_token + row / job.group) * job.q_stride + column_of(row);
    for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
      Vec::store(scratch.queries + row * scratch.width + i,
                 load_some(query + i, lanes_left(i, job.head_dim)));
    }
    scratch.tops[row] = -__builtin_inff();
    scratch.totals[row] = 0;
  }
  __builtin_memset(scratch.sums, 0, static_cast<std::size_t>(rows * scratch.width) * sizeof(float));

  const std::int64_t positions = item.context + item.num_tokens - 1;
  for (std::int64_t begin = 0; begin < positions; begin += kKeyTile) {
    const std::int64_t count = positions - begin < kKeyTile ? positions - begin : kKeyTile;
    load_tile<T>(job, item, begin, count, scratch);
    const std::int64_t unseen = begin + 1 - item.context;  // tokens whose context ends before this tile
    const auto valid_of = [&](std::int64_t token) {
      const std::int64_t seen = item.context + token - begin;
      return seen < kKeyTile ? seen : kKeyTile;
    };
    attend_tile(job, unseen > 0 ? unseen : 0, item.num_tokens, valid_of, scratch);
  }

  for (std::int64_t row = 0; row < rows; ++row) {
    T* out =
        static_cast<T*>(job.out) + (item.first_token + row / job.group) * job.out_stride + column_of(row);
    const F total = Vec::set1(scratch.totals[row]);
    for (std::int64_t i = 0; i < job.head_dim; i += kLanes) {
      const F sum = Vec::load(scratch.sums + row * scratch.width + i);
      store_some(out + i, Vec::div(sum, total), lanes_left(i, job.head_dim));
    }
  }
}

void attention(const AttentionJob& job, const AttentionItem& item, float* memory) {
  const AttentionScratch scratch(memory, item.num_tokens * job.group, job.head_dim);
  dispatch(job.cache.dtype, [&]<typename T>() { attend<T>(job, item, scratch); });
}

}  // namespace
}  // namespace quire::simd
