#pragma once

// Attention over the paged cache: for one KV head, the rows of its query heads over some neighbouring tokens.
// A tile of 64 positions at a time: scores = q · k, online softmax (Milakov and Gimelshein, 2018), sums +=
// weights · v; keys and values are read from the cache as they lie. A score is summed lane by lane over the
// head's dimensions, then over the lanes in one order; a value over the positions in order. Tiles begin at
// multiples of 64 positions, and a row goes through those of its own context alone, so its value does not
// depend on the rows beside it. Decode is a span of one token. Nothing beyond a row's context gets into it.

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

constexpr int kKeys = 4;  // that are multiplied at once

// A step's elements are loaded as two vectors, the halves. Which elements each has is the type's own affair,
// and the same for queries, keys and values.
constexpr int kStep = 2 * kLanes;

template <int kHalf>
[[gnu::always_inline]] inline F load_half(const BFloat16* p) {
  return kHalf == 0 ? Vec::even_bf16(p) : Vec::odd_bf16(p);
}
template <int kHalf, typename T>
[[gnu::always_inline]] inline F load_half(const T* p) {
  return Vec::load_as(p + kHalf * kLanes);
}
[[gnu::always_inline]] inline void store_halves(BFloat16* p, F even, F odd) {
  Vec::store_pairs(p, even, odd);
}
template <typename T>
[[gnu::always_inline]] inline void store_halves(T* p, F first, F second) {
  Vec::store_as(p, first);
  Vec::store_as(p + kLanes, second);
}

// The elements of a step of which only some are there; the others are zero.
template <typename T>
struct PartialStep {
  T values[kStep] = {};
  void read(const T* p, std::int64_t count) {
    __builtin_memcpy(values, p, static_cast<std::size_t>(count) * sizeof(T));
  }
};

// Calls function(i, step) for each step of a row, step pointing to all of its elements.
template <typename T, typename Function>
[[gnu::always_inline]] inline void for_each_step(const T* row, std::int64_t n, const Function& function) {
  std::int64_t i = 0;
  for (; i + kStep <= n; i += kStep) function(i, row + i);
  if (i < n) {
    PartialStep<T> last;
    last.read(row + i, n - i);
    function(i, static_cast<const T*>(last.values));
  }
}

// The scratch of one span.
struct AttentionScratch {
  std::int64_t width;  // head_dim, rounded up to steps
  float* queries;      // [rows][width]
  float* sums;         // [rows][width]
  float* scores;       // [rows][kKeyTile], then the weights
  float* tops;         // [rows] largest score so far
  float* totals;       // [rows] sum of the weights so far

  AttentionScratch(float* memory, std::int64_t rows, std::int64_t head_dim)
      : width(round_up(head_dim, kStep)) {
    queries = memory;
    sums = queries + rows * width;
    scores = sums + rows * width;
    tops = scores + rows * kKeyTile;
    totals = tops + rows;
  }
};

// Positions of one sequence, from a multiple of kKeyTile on.
struct KeyTile {
  std::int64_t begin, count;
  std::int64_t rows[kKeyTile];  // where each lies in the cache, in elements

  void locate(const CacheView& cache, const std::int32_t* blocks, std::int64_t first, std::int64_t end) {
    begin = first;
    count = end - begin < kKeyTile ? end - begin : kKeyTile;
    std::int64_t block = begin / cache.block_size;
    std::int64_t offset = begin % cache.block_size;
    for (std::int64_t j = 0; j < count; ++block, offset = 0) {
      std::int64_t row = blocks[block] * cache.block_stride + offset * cache.row_stride;
      for (; j < count && offset < cache.block_size; ++j, ++offset, row += cache.row_stride) rows[j] = row;
    }
    for (std::int64_t j = count; j % kKeys != 0; ++j) rows[j] = rows[count - 1];  // scores nobody looks at
  }
};

// A tile's keys and values of one head.
template <typename T>
struct HeadTile {
  const KeyTile* positions;  // null: none
  const T* keys;
  const T* values;

  HeadTile(const CacheView& cache, const KeyTile* tile, std::int64_t kv_head)
      : positions(tile),
        keys(static_cast<const T*>(cache.keys) + kv_head * cache.head_stride),
        values(static_cast<const T*>(cache.values) + kv_head * cache.head_stride) {}

  // Brings some positions near. Inline, since GCC drops calls that do nothing but prefetch.
  [[gnu::always_inline]] void fetch(std::int64_t begin, std::int64_t dim) const {
    const auto row_bytes = dim * static_cast<std::int64_t>(sizeof(T));
    for (const T* half : {keys, values}) {
      for (std::int64_t j = begin; j < begin + kKeys; ++j) {
        const auto* row = reinterpret_cast<const char*>(half + positions->rows[j]);
        for (std::int64_t i = 0; i < row_bytes; i += 64) _mm_prefetch(row + i, _MM_HINT_T1);
      }
    }
  }
};

// Queries as dot_step wants them.
template <typename T>
[[gnu::always_inline]] inline void store_query(const T* step, float* to) {
  Vec::store(to, load_half<0>(step));
  Vec::store(to + kLanes, load_half<1>(step));
}

template <int kRows, typename T>
[[gnu::always_inline]] inline void dot_step(F (&sums)[kRows][kKeys], const float* queries, std::int64_t width,
                                            const T* const (&keys)[kKeys]) {
  const auto add_half = [&]<int kHalf>() {
    F k[kKeys];
    for (int c = 0; c < kKeys; ++c) k[c] = load_half<kHalf>(keys[c]);
    for (int r = 0; r < kRows; ++r) {
      const F q = Vec::load(queries + r * width + kHalf * kLanes);
      for (int c = 0; c < kKeys; ++c) sums[r][c] = Vec::fma(q, k[c], sums[r][c]);
    }
  };
  add_half.template operator()<0>();
  add_half.template operator()<1>();
}

#if defined(__AVX512BF16__)
// Pairs of bfloat16 are multiplied as they are.
[[gnu::always_inline]] inline void store_query(const BFloat16* step, float* to) {
  _mm512_storeu_si512(to, _mm512_loadu_si512(step));
}

template <int kRows>
[[gnu::always_inline]] inline void dot_step(F (&sums)[kRows][kKeys], const float* queries, std::int64_t width,
                                            const BFloat16* const (&keys)[kKeys]) {
  __m512bh k[kKeys];
  for (int c = 0; c < kKeys; ++c) k[c] = (__m512bh)_mm512_loadu_si512(keys[c]);
  for (int r = 0; r < kRows; ++r) {
    const auto q = (__m512bh)_mm512_loadu_si512(queries + r * width);
    for (int c = 0; c < kKeys; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], q, k[c]);
  }
}
#endif

// The scores of kRows rows with the keys of a tile.
template <int kRows, typename T>
void score_rows(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                const HeadTile<T>& tile, const HeadTile<T>& next) {
  const float* queries = scratch.queries + row * scratch.width;
  const std::int64_t whole = job.head_dim / kStep * kStep;
  for (std::int64_t j = 0; j < tile.positions->count; j += kKeys) {
    if (next.positions != nullptr && j < next.positions->count) next.fetch(j, job.head_dim);
    const T* keys[kKeys];
    for (int c = 0; c < kKeys; ++c) keys[c] = tile.keys + tile.positions->rows[j + c];
    F sums[kRows][kKeys];
    for (auto& of_row : sums) {
      for (F& sum : of_row) sum = Vec::zero();
    }
    for (std::int64_t i = 0; i < whole; i += kStep) {
      dot_step<kRows>(sums, queries + i, scratch.width, keys);
      for (int c = 0; c < kKeys; ++c) keys[c] += kStep;
    }
    if (whole < job.head_dim) {
      PartialStep<T> last[kKeys];
      for (int c = 0; c < kKeys; ++c) {
        last[c].read(keys[c], job.head_dim - whole);
        keys[c] = last[c].values;
      }
      dot_step<kRows>(sums, queries + whole, scratch.width, keys);
    }
    for (int r = 0; r < kRows; ++r) {
      _mm_storeu_ps(scratch.scores + (row + r) * kKeyTile + j,
                    Vec::sum_each(sums[r][0], sums[r][1], sums[r][2], sums[r][3]));
    }
  }
}

struct Range {
  std::int64_t begin, end;
};

// The sums of kRows rows, in kSteps steps from `column` on, += weights · values of the positions.
template <int kRows, int kSteps, typename T>
[[gnu::always_inline]] inline void add_steps(const AttentionScratch& scratch, std::int64_t row,
                                             std::int64_t column, Range positions, const auto& step_of) {
  float* const out = scratch.sums + row * scratch.width + column;
  const float* weights = scratch.scores + row * kKeyTile;
  F sums[kRows][2 * kSteps];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kSteps; ++v) sums[r][v] = Vec::load(out + r * scratch.width + v * kLanes);
  }
  for (std::int64_t j = positions.begin; j < positions.end; ++j) {
    const T* values = step_of(j);
    F w[kRows];
    for (int r = 0; r < kRows; ++r) w[r] = Vec::set1(weights[r * kKeyTile + j]);
    for (int s = 0; s < kSteps; ++s) {
      const F first = load_half<0>(values + s * kStep);
      for (int r = 0; r < kRows; ++r) sums[r][2 * s] = Vec::fma(w[r], first, sums[r][2 * s]);
      const F second = load_half<1>(values + s * kStep);
      for (int r = 0; r < kRows; ++r) sums[r][2 * s + 1] = Vec::fma(w[r], second, sums[r][2 * s + 1]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2 * kSteps; ++v) Vec::store(out + r * scratch.width + v * kLanes, sums[r][v]);
  }
}

// The columns from `column` on, kSteps steps at a time, then fewer.
template <int kRows, int kSteps, typename T>
void add_values(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                const HeadTile<T>& tile, std::int64_t column, Range positions) {
  const std::int64_t* rows = tile.positions->rows;
  for (; column + kSteps * kStep <= job.head_dim; column += kSteps * kStep) {
    add_steps<kRows, kSteps, T>(scratch, row, column, positions,
                                [&](std::int64_t j) { return tile.values + rows[j] + column; });
  }
  if constexpr (kSteps > 1) {
    add_values<kRows, kSteps / 2, T>(job, scratch, row, tile, column, positions);
  } else if (column < job.head_dim) {
    PartialStep<T> last;
    add_steps<kRows, 1, T>(scratch, row, column, positions, [&](std::int64_t j) {
      last.read(tile.values + rows[j] + column, job.head_dim - column);
      return static_cast<const T*>(last.values);
    });
  }
}

// Turns the first `valid` scores of a row into weights and scales what was summed before.
void weigh(const AttentionScratch& scratch, std::int64_t row, std::int64_t valid, float scale) {
  float* scores = scratch.scores + row * kKeyTile;
  const F lowest = Vec::set1(-__builtin_inff());
  F top = lowest;
  for (std::int64_t j = 0; j < valid; j += kLanes) {
    const F scaled = Vec::mul(Vec::load(scores + j), Vec::set1(scale));
    const F score = Vec::first_lanes(static_cast<int>(valid - j), scaled, lowest);
    Vec::store(scores + j, score);
    top = Vec::max(top, score);
  }
  const float highest = max_lanes(top);
  const float old_top = scratch.tops[row];
  const float new_top = highest > old_top ? highest : old_top;
  F total = Vec::zero();
  for (std::int64_t j = 0; j < valid; j += kLanes) {
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

// kRows rows from `row` on with one tile; row r sees valid_of(r) of its positions, later rows no fewer.
template <int kRows, typename T>
void attend_rows(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                 const HeadTile<T>& tile, const HeadTile<T>& next, const auto& valid_of) {
  score_rows<kRows, T>(job, scratch, row, tile, next);
  for (int r = 0; r < kRows; ++r) weigh(scratch, row + r, valid_of(row + r), job.scale);
  constexpr int kSums = Vec::kAttentionSums / 2;  // in steps
  const std::int64_t common = valid_of(row);
  add_values<kRows, kSums / kRows, T>(job, scratch, row, tile, 0, {0, common});
  for (int r = 1; r < kRows; ++r)
    add_values<1, kSums, T>(job, scratch, row + r, tile, 0, {common, valid_of(row + r)});
}

// Some rows, kRows at a time, then fewer; meanwhile the next tile is fetched.
template <int kRows, typename T>
void attend_tile(const AttentionJob& job, const AttentionScratch& scratch, Range rows,
                 const HeadTile<T>& tile, HeadTile<T> next, const auto& valid_of) {
  for (; rows.begin + kRows <= rows.end; rows.begin += kRows) {
    attend_rows<kRows, T>(job, scratch, rows.begin, tile, next, valid_of);
    next.positions = nullptr;
  }
  if constexpr (kRows > 1) attend_tile<kRows / 2, T>(job, scratch, rows, tile, next, valid_of);
}

// The rows of a span go head by head, a head's token by token, a token's query head by query head.
template <typename T>
class SpanAttention {
 public:
  SpanAttention(const AttentionJob& job, const AttentionSpan& span, const AttentionScratch& scratch)
      : job_(job), span_(span), scratch_(scratch), head_rows_(span.num_tokens * job.group) {}

  void run() const {
    for (std::int64_t row = 0; row < span_.num_heads * head_rows_; ++row) begin_row(row);
    const std::int64_t end = span_.context + span_.num_tokens - 1;
    KeyTile tiles[2];
    tiles[0].locate(job_.cache, span_.blocks, 0, end);
    for (std::int64_t begin = 0; begin < end; begin += kKeyTile) {
      const KeyTile& tile = tiles[begin / kKeyTile % 2];
      KeyTile* next = nullptr;
      if (begin + kKeyTile < end) {
        next = &tiles[(begin / kKeyTile + 1) % 2];
        next->locate(job_.cache, span_.blocks, begin + kKeyTile, end);
      }
      // All heads of a tile: the cache has them side by side.
      for (std::int64_t head = 0; head < span_.num_heads; ++head) attend(head, tile, next);
    }
    for (std::int64_t row = 0; row < span_.num_heads * head_rows_; ++row) finish_row(row);
  }

 private:
  // Where the query and the output of a row begin.
  std::int64_t offset_of(std::int64_t row, std::int64_t stride) const {
    const std::int64_t token = span_.first_token + row % head_rows_ / job_.group;
    const std::int64_t head = (span_.first_head + row / head_rows_) * job_.group + row % job_.group;
    return token * stride + head * job_.head_dim;
  }

  void begin_row(std::int64_t row) const {
    float* query = scratch_.queries + row * scratch_.width;
    for_each_step(static_cast<const T*>(job_.q) + offset_of(row, job_.q_stride), job_.head_dim,
                  [&](std::int64_t i, const T* step) { store_query(step, query + i); });
    __builtin_memset(scratch_.sums + row * scratch_.width, 0,
                     static_cast<std::size_t>(scratch_.width) * sizeof(float));
    scratch_.tops[row] = -__builtin_inff();
    scratch_.totals[row] = 0;
  }

  void attend(std::int64_t head, const KeyTile& tile, const KeyTile* next) const {
    const std::int64_t first_row = head * head_rows_;
    const auto valid_of = [&](std::int64_t row) {
      const std::int64_t seen = span_.context + (row - first_row) / job_.group - tile.begin;
      return seen < kKeyTile ? seen : kKeyTile;
    };
    const std::int64_t unseen = tile.begin + 1 - span_.context;  // tokens whose context ends before this tile
    const bool last = head + 1 == span_.num_heads;
    attend_tile<Vec::kAttentionRows, T>(
        job_, scratch_, {first_row + (unseen > 0 ? unseen * job_.group : 0), first_row + head_rows_},
        HeadTile<T>(job_.cache, &tile, span_.first_head + head),
        last ? HeadTile<T>(job_.cache, next, span_.first_head)
             : HeadTile<T>(job_.cache, &tile, span_.first_head + head + 1),
        valid_of);
  }

  void finish_row(std::int64_t row) const {
    T* out = static_cast<T*>(job_.out) + offset_of(row, job_.out_stride);
    const F total = Vec::set1(scratch_.totals[row]);
    for (std::int64_t i = 0; i < job_.head_dim; i += kStep) {
      const float* sums = scratch_.sums + row * scratch_.width + i;
      T step[kStep];
      store_halves(step, Vec::div(Vec::load(sums), total), Vec::div(Vec::load(sums + kLanes), total));
      const std::int64_t left = job_.head_dim - i;
      __builtin_memcpy(out + i, step, static_cast<std::size_t>(left < kStep ? left : kStep) * sizeof(T));
    }
  }

  const AttentionJob& job_;
  const AttentionSpan& span_;
  const AttentionScratch& scratch_;
  std::int64_t head_rows_;
};

void attention(const AttentionJob& job, const AttentionSpan& span, float* memory) {
  const AttentionScratch scratch(memory, span.num_heads * span.num_tokens * job.group, job.head_dim);
  dispatch(job.cache.dtype, [&]<typename T>() { SpanAttention<T>(job, span, scratch).run(); });
}

}  // namespace
}  // namespace quire::simd
