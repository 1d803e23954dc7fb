#pragma once

// Products by AMX: tiles of 16 tokens by 16 rows of weights, 32 values of k at a time, or 64 of bytes. Every
// number of tokens takes this way, and an element is summed over k in order, in the order that TDPBF16PS has
// within 32 of them; so its value does not depend on the tokens beside it. (Bytes have the same sums in any
// order, so few tokens take VNNI; one token by other codes takes vectors, in that order.) Plain weights and
// bytes are used as they lie: a tile is 16 pairs, or fours, of k of 16 rows. Other codes become pairs, a
// chunk at a time, whose groups are scaled as anywhere.

#include "backends/cpu/simd/coded_matmul.h"

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

// Products of bytes take AMX's tiles for more tokens than this; VNNI is faster for fewer.
constexpr std::int64_t kFewTokens = 12;

[[gnu::always_inline]] inline bool takes_tiles(const LinearJob& job) {
  if (takes_bytes(job)) return job.tokens > kFewTokens;
  return takes_pairs(job) && (job.coded == nullptr || job.coded->group % kTile == 0);
}

// Steps that a group of columns takes, or of plain weights a block; the last one is filled up with zeros of
// x.
[[gnu::always_inline]] inline std::int64_t steps_of(const LinearJob& job, std::int64_t columns) {
  const std::int64_t depth = takes_bytes(job) ? 2 * kTileDepth : kTileDepth;
  return round_up(columns, depth) / depth;
}

// Where the steps of x from column k on begin, of the tokens rounded up to kTile.
[[gnu::always_inline]] inline float* steps_at(const LinearJob& job, std::int64_t k) {
  const std::int64_t group = job.coded == nullptr ? job.block : job.coded->group;
  return job.activations + k / group * steps_of(job, group) * round_up(job.tokens, kTile) * kTile;
}

// Some blocks of x: for each step of k [tokens, rounded up to kTile] pieces of 64 bytes.
void prepare_tiles(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  if (!takes_tiles(job)) return prepare_activations(job, begin, end);
  const std::int64_t group = job.coded == nullptr ? job.block : job.coded->group;
  for (std::int64_t k = begin * job.block; k < end * job.block && k < job.padded; k += group) {
    const std::int64_t count = smaller(job.padded - k, group);
    const std::int64_t bytes = takes_bytes(job) ? count : 2 * count;
    float* to = steps_at(job, k);
    float row[kBlockDepth];
    for (std::int64_t t = 0; t < job.tokens; ++t, to += kTile) {
      read_activations(job, t, k, count, row);
      sum_groups(job, t, k, count, row);
      __builtin_memset(reinterpret_cast<std::byte*>(row) + bytes, 0,
                       static_cast<std::size_t>(round_up(bytes, 64) - bytes));
      for (std::int64_t s = 0; s < steps_of(job, count); ++s)
        __builtin_memcpy(to + s * round_up(job.tokens, kTile) * kTile, row + s * kTile, 64);
    }
  }
}

// Tokens times rows of weights, both in whole tiles.
struct TileOperands {
  float* sums;                   // [tokens][kPanel]
  const float* a = nullptr;      // [steps][tokens][kTile], pairs or fours
  std::int64_t a_step;           // pairs from step to step
  const std::byte* b = nullptr;  // [steps][kTile][rows], pairs or fours
  std::int64_t b_row;            // bytes from one pair of k to the next
  std::int64_t steps = 0;
  bool adds = true;      // to the sums; else they begin here
  std::int64_t run = 0;  // steps of b that lie together, a power of two; 0: all
  std::int64_t gap = 0;  // bytes behind each run
};

// (The intrinsics want literals.)
#define QUIRE_LOAD_SUMS(tile, from)    \
  if (o.adds) {                        \
    _tile_loadd(tile, from, kSumsRow); \
  } else {                             \
    _tile_zero(tile);                  \
  }
#define QUIRE_ADD_PRODUCT(sums, x, w) \
  if constexpr (kBytes) {             \
    _tile_dpbssd(sums, x, w);         \
  } else {                            \
    _tile_dpbf16ps(sums, x, w);       \
  }

constexpr std::int64_t kSumsRow = kPanel * sizeof(float);

// Where the weights of step s are, behind those of the one before.
[[gnu::always_inline]] inline const std::byte* next_step(const TileOperands& o, std::int64_t s,
                                                         const std::byte* b) {
  return b + kTile * o.b_row + ((s & (o.run - 1)) == 0 ? o.gap : 0);
}

// One tile of tokens by up to four of rows: a panel of weights is read once.
template <bool kBytes>
void multiply_row_of_tiles(std::int64_t row_tiles, const TileOperands& o) {
  QUIRE_LOAD_SUMS(0, o.sums)
  if (row_tiles > 1) {
    QUIRE_LOAD_SUMS(1, o.sums + kTile)
  }
  if (row_tiles > 2) {
    QUIRE_LOAD_SUMS(2, o.sums + 2 * kTile)
  }
  if (row_tiles > 3) {
    QUIRE_LOAD_SUMS(3, o.sums + 3 * kTile)
  }
  const std::byte* b = o.b;
  for (std::int64_t s = 0; s < o.steps; ++s, b = next_step(o, s, b)) {
    _tile_loadd(4, o.a + s * o.a_step, 64);
    _tile_loadd(6, b, o.b_row);
    QUIRE_ADD_PRODUCT(0, 4, 6)
    if (row_tiles > 1) {
      _tile_loadd(7, b + 64, o.b_row);
      QUIRE_ADD_PRODUCT(1, 4, 7)
    }
    if (row_tiles > 2) {
      _tile_loadd(6, b + 128, o.b_row);
      QUIRE_ADD_PRODUCT(2, 4, 6)
    }
    if (row_tiles > 3) {
      _tile_loadd(7, b + 192, o.b_row);
      QUIRE_ADD_PRODUCT(3, 4, 7)
    }
  }
  _tile_stored(0, o.sums, kSumsRow);
  if (row_tiles > 1) _tile_stored(1, o.sums + kTile, kSumsRow);
  if (row_tiles > 2) _tile_stored(2, o.sums + 2 * kTile, kSumsRow);
  if (row_tiles > 3) _tile_stored(3, o.sums + 3 * kTile, kSumsRow);
}

// Two tiles of tokens by two of rows: half as much is loaded for a product.
template <bool kBytes>
void multiply_square_of_tiles(const TileOperands& o) {
  float* const lower = o.sums + kTile * kPanel;
  QUIRE_LOAD_SUMS(0, o.sums)
  QUIRE_LOAD_SUMS(1, o.sums + kTile)
  QUIRE_LOAD_SUMS(2, lower)
  QUIRE_LOAD_SUMS(3, lower + kTile)
  const std::byte* b = o.b;
  for (std::int64_t s = 0; s < o.steps; ++s, b = next_step(o, s, b)) {
    const float* a = o.a + s * o.a_step;
    _tile_loadd(4, a, 64);
    _tile_loadd(6, b, o.b_row);
    QUIRE_ADD_PRODUCT(0, 4, 6)
    _tile_loadd(7, b + 64, o.b_row);
    QUIRE_ADD_PRODUCT(1, 4, 7)
    _tile_loadd(5, a + kTile * kTile, 64);
    QUIRE_ADD_PRODUCT(2, 5, 6)
    QUIRE_ADD_PRODUCT(3, 5, 7)
  }
  _tile_stored(0, o.sums, kSumsRow);
  _tile_stored(1, o.sums + kTile, kSumsRow);
  _tile_stored(2, lower, kSumsRow);
  _tile_stored(3, lower + kTile, kSumsRow);
}

#undef QUIRE_LOAD_SUMS
#undef QUIRE_ADD_PRODUCT

// All tokens, a multiple of kTile, by all rows of a panel.
template <bool kBytes>
void multiply_tiles(std::int64_t tokens, std::int64_t rows, const TileOperands& o) {
  const auto part = [&](std::int64_t token, std::int64_t row) {
    TileOperands p = o;
    p.sums += token * kPanel + row;
    p.a += token * kTile;
    p.b += row * 4;
    return p;
  };
  std::int64_t token = 0;
  if (rows == kPanel) {
    for (std::int64_t row = 0; row < rows; row += 2 * kTile) {
      for (token = 0; token + 2 * kTile <= tokens; token += 2 * kTile)
        multiply_square_of_tiles<kBytes>(part(token, row));
    }
  }
  for (; token < tokens; token += kTile) multiply_row_of_tiles<kBytes>(rows / kTile, part(token, 0));
}

// The same of less than a step's pairs or fours of k, [count][rows] at o.b: what lies behind them may be
// anything. step: room for the whole step.
template <bool kBytes>
void multiply_last_step(std::int64_t tokens, std::int64_t rows, std::int64_t count, TileOperands o,
                        float* step) {
  __builtin_memset(step, 0, static_cast<std::size_t>(kTile * o.b_row));
  __builtin_memcpy(step, o.b, static_cast<std::size_t>(count * o.b_row));
  o.b = reinterpret_cast<const std::byte*>(step);
  o.steps = 1;
  multiply_tiles<kBytes>(tokens, rows, o);
}

void multiply_plain_panel(const LinearJob& job, std::int64_t rows, const std::byte* weights, float* scratch) {
  const std::int64_t tokens = round_up(job.tokens, kTile);
  const std::int64_t whole = job.padded / kTileDepth * kTileDepth;
  TileOperands o = {.sums = scratch, .a_step = tokens * kTile, .b_row = rows * 4, .adds = false};
  for (std::int64_t k = 0; k < whole; k += kTiledDepth) {
    const std::int64_t count = smaller(whole - k, kTiledDepth);
    o.a = job.activations + k / 2 * tokens;
    o.b = weights + k / 2 * o.b_row;
    o.steps = count / kTileDepth;
    multiply_tiles<false>(tokens, rows, o);
    o.adds = true;
  }
  if (whole == job.padded) return;
  o.a = job.activations + whole / 2 * tokens;
  o.b = weights + whole / 2 * o.b_row;
  multiply_last_step<false>(tokens, rows, (job.padded - whole) / 2, o, scratch + kMaxPassTokens * kPanel);
}

// Weights as they lie, up to four chunks at a time.
void multiply_byte_panel(const LinearJob& job, std::int64_t rows, const std::byte* panel, float* scratch) {
  constexpr std::int64_t kDepth = 2 * kTileDepth, kMaxChunks = 4;
  const std::int64_t tokens = round_up(job.tokens, kTile), span = job.coded->span;
  TileOperands o = {
      .sums = scratch, .a = job.activations, .a_step = tokens * kTile, .b_row = rows * 4, .adds = false};
  for (std::int64_t k = 0; k < job.padded;) {
    const std::int64_t left = job.padded - k, columns = smaller(left, span);
    const CodedChunk parts(*job.coded, rows, columns);
    const std::int64_t whole = span == kMaxSpan ? left / span : 0;  // chunks
    const std::int64_t chunks = whole > kMaxChunks ? kMaxChunks : whole > 1 ? whole : 1;
    o.b = panel + parts.codes;
    o.run = chunks > 1 ? kMaxSpan / kDepth : 0;
    o.gap = parts.codes;
    o.steps = columns / kDepth * chunks;
    if (o.steps > 0) {
      multiply_tiles<true>(tokens, rows, o);
      o.adds = true;
    }
    o.a += o.steps * o.a_step;
    if (columns % kDepth != 0) {
      o.b += o.steps * kTile * o.b_row;
      multiply_last_step<true>(tokens, rows, columns % kDepth / 4, o, scratch + kMaxPassTokens * kPanel);
    }
    panel += parts.end * chunks;
    k += columns * chunks;
  }
}

// Columns of a group from k on, some tokens, and the rows of a panel.
struct GroupPart {
  std::int64_t k, token, rows;
};

// Sums of two tiles of tokens over a group, f32 [tokens][kPanel], times their scales, to those of all.
void add_group(const LinearJob& job, const GroupPart& part, const float* sums, const float* scales,
               float* all) {
  const float* const values = group_values(job, part.k);
  const float* const minima = scales + kMaxGroups * kPanel;
  for (std::int64_t t = part.token; t < job.tokens && t < part.token + 2 * kTile; ++t, sums += kPanel) {
    const F scale = Vec::set1(rounds_input(job) ? values[t] : 1.0F);
    for (std::int64_t i = 0; i < part.rows; i += kLanes) {
      float* const to = all + t * kPanel + i;
      F sum = Vec::fma(Vec::load(sums + i) * scale, Vec::load(scales + i), Vec::load(to));
      if (job.coded->offset != OffsetType::kNone)
        sum = Vec::fma(Vec::set1(values[t]), Vec::load(minima + i), sum);
      Vec::store(to, sum);
    }
  }
}

// Codes that become pairs, a chunk at a time.
template <PackedCode kCode>
void multiply_coded_panel(const LinearJob& job, std::int64_t rows, const std::byte* panel, float* scratch) {
  const CodedLayout& layout = *job.coded;
  const std::int64_t tokens = round_up(job.tokens, kTile);
  float* const block = scratch + kMaxPassTokens * kPanel;
  float* const sums = block + (kBlockDepth / 2 + kTile) * kPanel;  // of a group, of two tiles of tokens
  float* const scales = block + kBlockDepth * kPanel;
  if (!layout.whole_rows)
    __builtin_memset(scratch, 0, static_cast<std::size_t>(tokens * kPanel) * sizeof(float));
  for (std::int64_t k = 0; k < job.padded; k += layout.span) {
    const std::int64_t columns = smaller(job.padded - k, layout.span);
    const CodedChunk parts(layout, rows, columns);
    widen_chunk(WordPairs<kCode>(layout), panel + parts.codes, rows, columns / step_columns(kCode), rows,
                block);
    __builtin_memset(block + columns / 2 * rows, 0, static_cast<std::size_t>(kTile * rows) * sizeof(float));
    TileOperands o = {.sums = layout.whole_rows ? scratch : sums,
                      .a = steps_at(job, k),
                      .a_step = tokens * kTile,
                      .b = reinterpret_cast<const std::byte*>(block),
                      .b_row = rows * 4,
                      .steps = steps_of(job, columns),
                      .adds = layout.whole_rows && k > 0};
    if (layout.whole_rows) {
      multiply_tiles<false>(tokens, rows, o);
    } else {
      const std::int64_t groups = round_up(columns, layout.group) / layout.group;
      ChunkScales{layout, panel, parts, rows, groups}.read_all(1, scales, scales + kMaxGroups * kPanel);
      for (std::int64_t group = 0; group < groups; ++group) {
        const std::int64_t first = group * layout.group;
        o.a = steps_at(job, k + first);
        o.b = reinterpret_cast<const std::byte*>(block + first / 2 * rows);
        o.steps = steps_of(job, smaller(columns - first, layout.group));
        for (std::int64_t t = 0; t < job.tokens; t += 2 * kTile, o.a += 2 * kTile * kTile) {
          multiply_tiles<false>(smaller(tokens - t, 2 * kTile), rows, o);
          add_group(job, {k + first, t, rows}, sums, scales + group * kPanel, scratch);
        }
      }
    }
    panel += parts.end;
  }
}

// As load_words; others are fetched meanwhile.
template <int kWords>
[[gnu::always_inline]] inline void fetch_words(const std::byte* from, std::int64_t stride,
                                               __m512i (&words)[kWords]) {
  constexpr std::int64_t kAhead = 8192;
  for (int i = 0; i < kWords; ++i) fetch(from + i * stride + kAhead, 1);
  load_words(from, stride, words);
}

// Words of codes, whose even and odd columns are multiplied apart. x: pairs.
template <PackedCode kCode, int NV, int kPair = 0>
[[gnu::always_inline]] inline void add_apart(const WordPairs<kCode>& codes, const float* x,
                                             const __m512i (&words)[NV][WordPairs<kCode>::kWords],
                                             F (&even)[NV], F (&odd)[NV]) {
  if constexpr (kPair < WordPairs<kCode>::kActivations) {
    const auto even_of = [](__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); };
    const auto odd_of = [](__m512i pairs) {
      return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
    };
    const __m512i xs = _mm512_castps_si512(_mm512_set1_ps(x[kPair]));
    for (int v = 0; v < NV; ++v) {
      const auto pairs = (__m512i)codes.template pair<kPair>(words[v]);
      even[v] = Vec::fma(even_of(xs), even_of(pairs), even[v]);
      odd[v] = Vec::fma(odd_of(xs), odd_of(pairs), odd[v]);
    }
    add_apart<kCode, NV, kPair + 1>(codes, x, words, even, odd);
  }
}

// The sums of one token over a chunk's groups, [groups][kPanel]; whole rows go on with theirs. They are those
// of tiles: TDPBF16PS adds up the products of the even columns of a step and those of the odd ones, each in
// order, then both, and adds that to the sum; subnormal numbers are zero (Intel, "Architecture Instruction
// Set Extensions Programming Reference"). o: of tiles, with the codes as weights.
template <PackedCode kCode, int NV>
[[gnu::noinline]] void sum_as_tiles(const CodedLayout& layout, const TileOperands& o) {
  const WordPairs<kCode> codes(layout);
  constexpr int kWords = WordPairs<kCode>::kWords;
  const std::int64_t tile_steps = kTileDepth / step_columns(kCode);
  const std::int64_t group_steps = layout.group / step_columns(kCode);
  const float* a = o.a;
  const std::byte* b = o.b;
  float* to = o.sums;
  for (std::int64_t first = 0; first < o.steps; first += group_steps, to += kPanel) {
    const std::int64_t end = smaller(first + group_steps, o.steps);
    F sums[NV];
    for (int v = 0; v < NV; ++v) sums[v] = o.adds ? Vec::load(to + v * kLanes) : Vec::zero();
    for (std::int64_t step = first; step < end; step += tile_steps, a += o.a_step) {
      F even[NV], odd[NV];
      for (int v = 0; v < NV; ++v) even[v] = odd[v] = Vec::zero();
      const float* x = a;
      for (std::int64_t s = step; s < step + tile_steps && s < end; ++s, b += kWords * o.b_row) {
        __m512i words[NV][kWords];
        for (int v = 0; v < NV; ++v) fetch_words(b + v * 64, o.b_row, words[v]);
        add_apart(codes, x, words, even, odd);
        x += WordPairs<kCode>::kActivations;
      }
      for (int v = 0; v < NV; ++v) sums[v] += even[v] + odd[v];
    }
    for (int v = 0; v < NV; ++v) Vec::store(to + v * kLanes, sums[v]);
  }
}

// The same product of one token, for which the codes are widened in registers: tiles would take twice as
// long.
template <PackedCode kCode>
void multiply_token(const LinearJob& job, std::int64_t rows, const std::byte* panel, float* scratch) {
  constexpr unsigned kSubnormalsAreZero = 0x8040;
  const CodedLayout& layout = *job.coded;
  float* const sums = scratch + kPanel;
  float* const scales = scratch + (kMaxPassTokens + kBlockDepth) * kPanel;
  const unsigned mode = _mm_getcsr();
  __builtin_memset(scratch, 0, kPanel * sizeof(float));
  for (std::int64_t k = 0; k < job.padded; k += layout.span) {
    const std::int64_t columns = smaller(job.padded - k, layout.span);
    const CodedChunk parts(layout, rows, columns);
    TileOperands o = {.sums = layout.whole_rows ? scratch : sums,
                      .a = steps_at(job, k),
                      .a_step = kTile * kTile,
                      .b = panel + parts.codes,
                      .b_row = rows * 4,
                      .steps = columns / step_columns(kCode),
                      .adds = layout.whole_rows};
    _mm_setcsr(mode | kSubnormalsAreZero);
    if (rows == kPanel) {
      sum_as_tiles<kCode, kPanel / kLanes>(layout, o);
    } else {
      for (std::int64_t row = 0; row < rows; row += kLanes, o.sums += kLanes, o.b += 64)
        sum_as_tiles<kCode, 1>(layout, o);
    }
    _mm_setcsr(mode);
    if (!layout.whole_rows) {
      const std::int64_t groups = round_up(columns, layout.group) / layout.group;
      ChunkScales{layout, panel, parts, rows, groups}.read_all(1, scales, scales + kMaxGroups * kPanel);
      for (std::int64_t group = 0; group < groups; ++group)
        add_group(job, {k + group * layout.group, 0, rows}, sums + group * kPanel, scales + group * kPanel,
                  scratch);
    }
    panel += parts.end;
  }
}

void multiply_panels_by_tiles(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const TileConfig config;
  _tile_loadconfig(&config);
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel, rows = panel_width(job.out_features, panel);
    if (job.coded == nullptr) {
      multiply_plain_panel(job, rows, job.weights + first_row * job.padded * 2, scratch);
    } else {
      const std::byte* weights = job.weights + panel * coded_panel_bytes(*job.coded, kPanel, job.padded);
      if (takes_bytes(job)) {
        multiply_byte_panel(job, rows, weights, scratch);
        scale_sums<true>(job, weights, rows, scratch);
      } else {
        with_code(job.coded->code, [&]<PackedCode kCode>() {
          job.tokens == 1 ? multiply_token<kCode>(job, rows, weights, scratch)
                          : multiply_coded_panel<kCode>(job, rows, weights, scratch);
        });
        if (job.coded->whole_rows) scale_sums<false>(job, weights, rows, scratch);
      }
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
