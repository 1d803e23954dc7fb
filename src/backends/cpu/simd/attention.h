#pragma once

// Attention over the paged cache: some neighbouring KV heads, and the rows of their query heads over some
// neighbouring tokens. A tile of 64 positions at a time: scores = q · k, online softmax (Milakov and
// Gimelshein, 2018), sums += weights · v; keys and values are read from the cache as they lie.
//
// A score is summed lane by lane over the head's dimensions, then over the lanes in one order; a value over
// the positions in order. Tiles begin at multiples of 64 positions, and a row goes through those of its own
// context alone, so its value does not depend on the rows beside it. Decode is a span of one token. Nothing
// beyond a row's context gets into it.
//
// A cache of codes is widened to 16 bits, which hold every code's number, a tile and KV head at a time, for
// all rows of the span. The keys' scales multiply the scores, the values' the weights.
//
// Decode must read every key and value once: eight sequences of 544 tokens, 500 MB, at 33 of the 37 GB/s that
// two cores of an EPYC read. A prompt of 512 tokens is attended to at 113 of 180 GFLOP/s there. (AVX2, bf16.)

#include <type_traits>

#include "backends/cpu/simd/attention_tiles.h"

namespace quire::simd {
namespace {

// What is multiplied at once: eight sums, as many as are under way at two a cycle that take four cycles each,
// or sixteen where there are registers for them.
constexpr int kRowsAtOnce = kLanes < 16 ? 2 : 4;
constexpr int kKeys = 4;
constexpr int kVectorsOfValues = kRowsAtOnce * kKeys;  // of all rows

// The halves of a step, as keys and values of type T have them, and the same of queries and sums: of bfloat16
// the even elements and the odd ones.
template <int kHalf, typename T, typename E>
[[gnu::always_inline]] inline F load_half(const E* p) {
  if constexpr (!std::is_same_v<T, BFloat16>)
    return Vec::load_as(p + kHalf * kLanes);
  else
    return kHalf == 0 ? Vec::even_bf16(p) : Vec::odd_bf16(p);
}
template <typename T, typename E>
[[gnu::always_inline]] inline void store_halves(E* p, F first, F second) {
  if constexpr (!std::is_same_v<T, BFloat16>) {
    Vec::store_as(p, first);
    Vec::store_as(p + kLanes, second);
  } else {
    Vec::store_pairs(p, first, second);
  }
}

// Queries as dot_step wants them. T: of the keys.
template <typename T, typename E>
[[gnu::always_inline]] inline void store_query(const E* step, float* to) {
#if defined(__AVX512BF16__)
  if constexpr (std::is_same_v<T, BFloat16>) {
    _mm512_storeu_si512(to, _mm512_loadu_si512(step));
    return;
  }
#endif
  Vec::store(to, load_half<0, T>(step));
  Vec::store(to + kLanes, load_half<1, T>(step));
}

template <int kRows, typename T>
[[gnu::always_inline]] inline void dot_step(F (&sums)[kRows][kKeys], const float* queries, std::int64_t width,
                                            const T* const (&keys)[kKeys]) {
  const auto add_half = [&]<int kHalf>() {
    F k[kKeys];
    for (int c = 0; c < kKeys; ++c) k[c] = load_half<kHalf, T>(keys[c]);
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

// The scores of kRows rows with the keys of a tile; meanwhile those of the next one are fetched.
template <int kRows, typename T>
void score_rows(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                const HeadTile<T>& tile, const auto& next) {
  const float* queries = scratch.queries + row * scratch.width;
  const std::int64_t whole = job.head_dim / kStep * kStep;
  for (std::int64_t j = 0; j < tile.positions->count; j += kKeys) {
    if (next)
      for (int c = 0; c < kKeys; ++c) fetch(next.key(j + c), job.head_dim);
    const T* keys[kKeys];
    for (int c = 0; c < kKeys; ++c) keys[c] = tile.key(j + c);
    F sums[kRows][kKeys];
    for (auto& of_row : sums)
      for (F& sum : of_row) sum = Vec::zero();
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

// The sums of kRows rows, in kSteps steps from `column` on, += weights · values of the positions.
template <int kRows, int kSteps, typename T>
[[gnu::always_inline]] inline void add_steps(const AttentionScratch& scratch, std::int64_t row,
                                             std::int64_t column, Range positions, const auto& step_of) {
  float* const out = scratch.sums + row * scratch.width + column;
  const float* weights = scratch.scores + row * kKeyTile;
  F sums[kRows][2 * kSteps];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2 * kSteps; ++v) sums[r][v] = Vec::load(out + r * scratch.width + v * kLanes);
  for (std::int64_t j = positions.begin; j < positions.end; ++j) {
    const T* values = step_of(j);
    F w[kRows];
    for (int r = 0; r < kRows; ++r) w[r] = Vec::set1(weights[r * kKeyTile + j]);
    for (int s = 0; s < kSteps; ++s) {
      const F first = load_half<0, T>(values + s * kStep);
      for (int r = 0; r < kRows; ++r) sums[r][2 * s] = Vec::fma(w[r], first, sums[r][2 * s]);
      const F second = load_half<1, T>(values + s * kStep);
      for (int r = 0; r < kRows; ++r) sums[r][2 * s + 1] = Vec::fma(w[r], second, sums[r][2 * s + 1]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < 2 * kSteps; ++v) Vec::store(out + r * scratch.width + v * kLanes, sums[r][v]);
}

// The columns from `column` on, kSteps steps at a time, then fewer; meanwhile the next tile's are fetched.
template <int kRows, int kSteps, typename T>
[[gnu::noinline]] void add_values(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                                  const HeadTile<T>& tile, const auto& next, Range positions,
                                  std::int64_t column = 0) {
  for (; column + kSteps * kStep <= job.head_dim; column += kSteps * kStep) {
    const auto values_of = [&](std::int64_t j) { return tile.value(j) + column; };
    if (next) {
      add_steps<kRows, kSteps, T>(scratch, row, column, positions, [&](std::int64_t j) {
        fetch(next.value(j) + column, kSteps * kStep);
        return values_of(j);
      });
    } else {
      add_steps<kRows, kSteps, T>(scratch, row, column, positions, values_of);
    }
  }
  if constexpr (kSteps > 1) {
    add_values<kRows, kSteps / 2, T>(job, scratch, row, tile, next, positions, column);
  } else if (column < job.head_dim) {
    PartialStep<T> last;
    add_steps<kRows, 1, T>(scratch, row, column, positions, [&](std::int64_t j) {
      last.read(tile.value(j) + column, job.head_dim - column);
      return static_cast<const T*>(last.values);
    });
  }
}

// What a row sees of a tile, and the scales of its keys and values, or null.
struct TileView {
  Range valid;            // positions of the tile, at least one
  std::int64_t distance;  // from the query to the tile's first position; not above 0 where that is valid
  float slope;            // of ALiBi
  const float* key_scales;
  const float* value_scales;
};

constexpr float kLaneNumbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Turns the scores that a row sees into weights, those before them into zeros, and scales what was summed
// before.
void weigh(const AttentionScratch& scratch, std::int64_t row, const TileView& view, float scale, float cap) {
  float* scores = scratch.scores + row * kKeyTile;
  const F lowest = Vec::set1(-__builtin_inff());
  const std::int64_t valid = view.valid.end;
  F top = lowest;
  for (std::int64_t j = 0; j < valid; j += kLanes) {
    F scaled = Vec::load(scores + j) * Vec::set1(scale);
    if (view.key_scales != nullptr) scaled *= Vec::load(view.key_scales + j);
    if (cap > 0) scaled = capped(scaled, cap);
    if (view.slope != 0) {
      const F distance = Vec::set1(static_cast<float>(view.distance + j)) + Vec::load(kLaneNumbers);
      scaled = Vec::fma(Vec::set1(view.slope), distance, scaled);
    }
    F score = Vec::first_lanes(static_cast<int>(valid - j), scaled, lowest);
    if (j < view.valid.begin) score = Vec::first_lanes(static_cast<int>(view.valid.begin - j), lowest, score);
    Vec::store(scores + j, score);
    top = Vec::max(top, score);
  }
  const float highest = max_lanes(top);
  const float old_top = scratch.tops[row];
  const float new_top = highest > old_top ? highest : old_top;
  F total = Vec::zero();
  for (std::int64_t j = 0; j < valid; j += kLanes) {
    const F weight = exp(Vec::load(scores + j) - Vec::set1(new_top));
    Vec::store(scores + j, view.value_scales == nullptr ? weight : weight * Vec::load(view.value_scales + j));
    total += weight;
  }
  const F factor = exp(Vec::set1(old_top - new_top));
  scratch.tops[row] = new_top;
  scratch.totals[row] = scratch.totals[row] * factor[0] + sum_lanes(total);
  float* sums = scratch.sums + row * scratch.width;
  for (std::int64_t i = 0; i < scratch.width; i += kLanes) Vec::store(sums + i, Vec::load(sums + i) * factor);
}

// kRows rows from `row` on with one tile; row r sees view_of(r) of it, later rows end no earlier.
template <int kRows, typename T>
void attend_rows(const AttentionJob& job, const AttentionScratch& scratch, std::int64_t row,
                 const HeadTile<T>& tile, const auto& next, const auto& view_of) {
  score_rows<kRows, T>(job, scratch, row, tile, next);
  for (int r = 0; r < kRows; ++r) weigh(scratch, row + r, view_of(row + r), job.scale, job.cap);
  constexpr int kSteps = kVectorsOfValues / 2;
  const std::int64_t common = view_of(row).valid.end;
  add_values<kRows, kSteps / kRows, T>(job, scratch, row, tile, next, {0, common});
  for (int r = 1; r < kRows; ++r)
    add_values<1, kSteps, T>(job, scratch, row + r, tile, HeadTile<T>(),
                             {common, view_of(row + r).valid.end});
}

// Some rows, kRows at a time, then fewer; meanwhile the next tile is fetched.
template <int kRows, typename T>
[[gnu::noinline]] void attend_tile(const AttentionJob& job, const AttentionScratch& scratch, Range rows,
                                   const HeadTile<T>& tile, auto next, const auto& view_of) {
  for (; rows.begin + kRows <= rows.end; rows.begin += kRows) {
    attend_rows<kRows, T>(job, scratch, rows.begin, tile, next, view_of);
    next = {};
  }
  if constexpr (kRows > 1) attend_tile<kRows / 2, T>(job, scratch, rows, tile, next, view_of);
}

// The rows of a span go head by head, a head's token by token, a token's query head by query head. E: of
// queries.
template <typename E, bool kOfCodes>
class SpanAttention {
 public:
  SpanAttention(const AttentionJob& job, const AttentionSpan& span, const AttentionScratch& scratch)
      : job_(job),
        span_(span),
        blocks_(job.block_tables + span.table_row * job.table_stride),
        scratch_(scratch),
        head_rows_(span.num_tokens * job.group) {}

  void run() const {
    for (std::int64_t row = 0; row < span_.num_heads * head_rows_; ++row) begin_row(row);
    const Range seen = {first_seen(0), span_.context + span_.num_tokens - 1};
    const std::int64_t first = seen.begin / kKeyTile * kKeyTile;
    KeyTile tiles[2];
    tiles[first / kKeyTile % 2].locate(job_.cache, blocks_, first, seen);
    for (std::int64_t begin = first; begin < seen.end; begin += kKeyTile) {
      const KeyTile& tile = tiles[begin / kKeyTile % 2];
      KeyTile* next = nullptr;
      if (begin + kKeyTile < seen.end) {
        next = &tiles[(begin / kKeyTile + 1) % 2];
        next->locate(job_.cache, blocks_, begin + kKeyTile, seen);
      }
      // All heads of a tile: the cache has them side by side.
      for (std::int64_t head = 0; head < span_.num_heads; ++head) attend(head, tile, next);
    }
    for (std::int64_t row = 0; row < span_.num_heads * head_rows_; ++row) finish_row(row);
  }

 private:
  using T = std::conditional_t<kOfCodes, typename WidenedCode<E>::Type, E>;  // of keys and values

  // The query, or the output, of a row.
  E* head_at(const Rows& tokens, std::int64_t row) const {
    return tokens.row<E>(span_.first_token + row % head_rows_ / job_.group) + head_of(row) * job_.head_dim;
  }

  // The query head of a row.
  std::int64_t head_of(std::int64_t row) const {
    return (span_.first_head + row / head_rows_) * job_.group + row % job_.group;
  }

  void begin_row(std::int64_t row) const {
    float* query = scratch_.queries + row * scratch_.width;
    const E* from = head_at(job_.q, row);
    PartialStep<E> last;
    for (std::int64_t i = 0; i < job_.head_dim; i += kStep) {
      const bool is_whole = job_.head_dim - i >= kStep;
      if (!is_whole) last.read(from + i, job_.head_dim - i);
      store_query<T>(is_whole ? from + i : last.values, query + i);
    }
    __builtin_memset(scratch_.sums + row * scratch_.width, 0,
                     static_cast<std::size_t>(scratch_.width) * sizeof(float));
    // A sink is a score that comes before all others.
    scratch_.tops[row] = job_.sinks == nullptr ? -__builtin_inff() : job_.sinks[head_of(row)];
    scratch_.totals[row] = job_.sinks == nullptr ? 0 : 1;
  }

  template <typename C>
  HeadTile<C> next_of(std::int64_t head, const KeyTile& tile, const KeyTile* next) const {
    if (head + 1 < span_.num_heads) return HeadTile<C>::of(job_.cache, tile, span_.first_head + head + 1);
    if (next != nullptr) return HeadTile<C>::of(job_.cache, *next, span_.first_head);
    return {};
  }

  // The first position that a token of the span sees.
  std::int64_t first_seen(std::int64_t token) const {
    const std::int64_t first = span_.context + token - job_.window;
    return first > 0 ? first : 0;
  }

  void attend(std::int64_t head, const KeyTile& tile, const KeyTile* next) const {
    const std::int64_t kv_head = span_.first_head + head;
    if constexpr (!kOfCodes) {
      attend(head, HeadTile<T>::of(job_.cache, tile, kv_head), next_of<T>(head, tile, next));
    } else {
      const auto codes = HeadTile<std::uint8_t>::of(job_.cache, tile, kv_head);
      const auto next_codes = next_of<std::uint8_t>(head, tile, next);
      attend(head,
             job_.cache.code == CacheCode::kE4m3
                 ? widened<CacheCode::kE4m3, WidenedCode<E>::kCodes, T>(job_, scratch_, codes, next_codes)
                 : widened<CacheCode::kE5m2, WidenedCode<E>::kCodes, T>(job_, scratch_, codes, next_codes),
             next_codes);
    }
  }

  void attend(std::int64_t head, const HeadTile<T>& heads, const auto& next) const {
    const KeyTile& tile = *heads.positions;
    const std::int64_t first_row = head * head_rows_;
    const auto view_of = [&](std::int64_t row) {
      const std::int64_t token = (row - first_row) / job_.group;
      const std::int64_t end = span_.context + token - tile.begin;
      const std::int64_t begin = first_seen(token) - tile.begin;
      return TileView{.valid = {begin > 0 ? begin : 0, smaller(end, kKeyTile)},
                      .distance = 1 - end,
                      .slope = job_.slopes == nullptr ? 0 : job_.slopes[head_of(row)],
                      .key_scales = heads.key_scales,
                      .value_scales = heads.value_scales};
    };
    // Tokens whose context ends before this tile, and whose window begins behind it.
    const std::int64_t unseen = tile.begin + 1 - span_.context;
    const std::int64_t behind = tile.begin + kKeyTile + job_.window - span_.context;
    attend_tile<kRowsAtOnce, T>(job_, scratch_,
                                {first_row + (unseen > 0 ? unseen * job_.group : 0),
                                 first_row + (behind < span_.num_tokens ? behind * job_.group : head_rows_)},
                                heads, next, view_of);
  }

  void finish_row(std::int64_t row) const {
    E* out = head_at(job_.out, row);
    const F total = Vec::set1(scratch_.totals[row]);
    for (std::int64_t i = 0; i < job_.head_dim; i += kStep) {
      const float* sums = scratch_.sums + row * scratch_.width + i;
      const std::int64_t left = job_.head_dim - i;
      E last[kStep];
      store_halves<T>(left < kStep ? last : out + i, Vec::load(sums) / total,
                      Vec::load(sums + kLanes) / total);
      if (left < kStep) __builtin_memcpy(out + i, last, static_cast<std::size_t>(left) * sizeof(E));
    }
  }

  const AttentionJob& job_;
  const AttentionSpan& span_;
  const std::int32_t* blocks_;
  const AttentionScratch& scratch_;
  std::int64_t head_rows_;
};

void attention(const AttentionJob& job, const AttentionSpan& span, float* memory) {
  const AttentionScratch scratch = {.rows = span.num_heads * span.num_tokens * job.group,
                                    .width = round_up(job.head_dim, kStep),
                                    .queries = memory};
  dispatch(job.cache.dtype, [&]<typename E>() {
    if (job.cache.code == CacheCode::kNone)
      SpanAttention<E, false>(job, span, scratch).run();
    else
      SpanAttention<E, true>(job, span, scratch).run();
  });
}

}  // namespace
}  // namespace quire::simd
