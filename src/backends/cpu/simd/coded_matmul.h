#pragma once

// Products with packed matrices of codes (CodedLayout, kernels.h): out [tokens, out] = x [tokens, k] · wᵀ.
//
// Codes become bfloat16 where x is and the processor multiplies pairs of it, else float32; both hold every
// code's value exactly. A group of columns is summed on its own, in order; its sum times its scale is added
// to the element's, and the group's minimum times x's sum over the group is taken away. So no weight is ever
// rounded, and an element's value does not depend on the tokens beside it. For few tokens the codes are
// widened in registers and read once, with the next chunk fetched meanwhile; many tokens share a chunk that
// is widened in memory.
//
// Reached on two cores of an EPYC (Zen 5): one token 70 to 80 of the 80 GB/s that bfloat16 weights are read
// at, 512 tokens 415 to 470 GFLOP/s a core where bfloat16 weights make 490.

#include "backends/cpu/simd/matmul.h"

namespace quire::simd {
namespace {

// Some tokens times some rows of a chunk.
struct CodedOperands {
  float* sums;              // [tokens][kPanel]
  const float* a;           // [tiles][columns of the chunk][tokens of the tile], floats or pairs
  const float* group_sums;  // of -x, [groups][tokens], or null
  std::int64_t tokens;      // of the job: from group to group
  const std::byte* codes;   // of each step, the rows side by side
  std::int64_t ahead;       // bytes from codes to what is fetched meanwhile
  std::int64_t stride;      // bytes from step to step
  std::int64_t steps;       // of the chunk
  std::int64_t group_steps;
  const float* scales;  // [groups][kPanel]
  const float* minima;  // the same
};

// How a step reads codes: one word of each row. kActivations: floats of each token that it takes, which are
// pairs where kPairs is set.
//
// A word's codes as float32.
template <CodeType kCode>
struct WordFloats {
  static constexpr bool kOfBytes = kCode != CodeType::kTable;
  static constexpr int kActivations = kOfBytes ? 4 : 8;
  // E4M3 is read as the upper bits of a binary16, which has a bias of 8 more.
  static constexpr float kScale = kCode == CodeType::kE4m3 ? 256.0F : 1.0F;
  Vec::Table table;

  explicit WordFloats(const CodedLayout& layout) : table(layout.table) {}
  static constexpr int bit_of(int column) {
    return kCode == CodeType::kTable ? column / 2 * 4 + column % 2 * 16 : column / 2 * 8 + column % 2 * 16;
  }
  template <int kColumn>
  [[gnu::always_inline]] F value(Vec::I word) const {
    constexpr int kBit = bit_of(kColumn);
    if constexpr (kCode == CodeType::kTable) {
      return table.at(Vec::right(word, kBit));
    } else if constexpr (kCode == CodeType::kInt) {
      return Vec::signed_to_floats(Vec::right_signed(Vec::left(word, 24 - kBit), 24));
    } else {
      const Vec::I code = Vec::right(Vec::left(word, 24 - kBit), 24);
      const Vec::I sign = Vec::left(Vec::bit_and(code, Vec::set1(0x80U)), 8);
      return Vec::halves_to_floats(Vec::bit_or(sign, Vec::left(Vec::bit_and(code, Vec::set1(0x7FU)), 7)));
    }
  }
  template <int M, int NV, int kColumn = 0>
  [[gnu::always_inline]] void step(F (&sums)[M][NV], const float* x, const Vec::I (&words)[NV]) const {
    if constexpr (kColumn < kActivations) {
      add_products(sums, x + kColumn * M, [&](int v) { return value<kColumn>(words[v]); });
      step<M, NV, kColumn + 1>(sums, x, words);
    }
  }
  // Writes a vector of rows: [kActivations][width] at `to`.
  template <int kColumn = 0>
  [[gnu::always_inline]] void widen(Vec::I word, std::int64_t width, float* to) const {
    if constexpr (kColumn < kActivations) {
      Vec::store(to + kColumn * width, value<kColumn>(word));
      widen<kColumn + 1>(word, width, to);
    }
  }
};

#if defined(__AVX512BF16__)
// The bits of bfloat16 by the lower bits of a code.
struct alignas(64) PairTable {
  std::uint16_t halves[64];  // kTable and codes from -32 to 31
  std::uint8_t lower[128];   // of bytes, by magnitude
  std::uint8_t upper[128];

  constexpr explicit PairTable(CodeType code) : halves(), lower(), upper() {
    for (int i = 0; i < 64; ++i) halves[i] = bits_of(static_cast<float>(i < 32 ? i : i - 64));
    for (int i = 0; i < 128; ++i) {
      const bool is_normal = code == CodeType::kE4m3 && i >= 8;  // from a bias of 7 to one of 127
      const std::uint16_t bits =
          is_normal ? static_cast<std::uint16_t>((i << 4) + (120 << 7))
                    : bits_of(static_cast<float>(i) * (code == CodeType::kE4m3 ? 0x1p-9F : 1));
      lower[i] = static_cast<std::uint8_t>(bits & 255);
      upper[i] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
  static constexpr std::uint16_t bits_of(float value) {
    return static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, value) >> 16);
  }
};

// A word's codes as pairs of bfloat16. kSmall: integers from -32 to 31.
template <CodeType kCode, bool kSmall>
struct WordPairs {
  static constexpr bool kOfBytes = kCode != CodeType::kTable;
  static constexpr int kActivations = kOfBytes ? 2 : 4;
  static constexpr float kScale = 1.0F;
  static constexpr PairTable kTable = PairTable(kCode);
  __m512i first, second;  // kTable: of the lower five bits, of which the last is not the code's

  explicit WordPairs(const CodedLayout& layout)
      : first(_mm512_load_si512(kTable.halves)), second(_mm512_load_si512(kTable.halves + 32)) {
    if constexpr (kCode == CodeType::kTable) {
      alignas(64) std::uint16_t values[32];
      for (int i = 0; i < 32; ++i) values[i] = PairTable::bits_of(layout.table[i % 16]);
      first = _mm512_load_si512(values);
    }
  }
  template <int kPair>
  [[gnu::always_inline]] __m512bh pair(__m512i word) const {
    if constexpr (kCode == CodeType::kTable)
      return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(word, 4 * kPair), first);
    else if constexpr (kSmall)
      return (__m512bh)_mm512_permutex2var_epi16(first, _mm512_srli_epi32(word, 8 * kPair), second);
    else
      return (__m512bh)pair_of_bytes<kPair>(word);
  }
  // Both bytes of a bfloat16 are looked up by the magnitude's seven bits; that of -128 looks like 0.
  template <int kPair>
  [[gnu::always_inline]] static __m512i pair_of_bytes(__m512i word) {
    const __m512i magnitude = kCode == CodeType::kInt ? _mm512_abs_epi8(word) : word;
    const auto look_up = [&](const std::uint8_t(&bytes)[128]) {
      return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), magnitude, _mm512_load_si512(bytes + 64));
    };
    const __m512i lower = look_up(kTable.lower);
    __m512i upper = look_up(kTable.upper);
    if constexpr (kCode == CodeType::kInt)
      upper = _mm512_mask_mov_epi8(upper, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(0x43));
    upper = _mm512_ternarylogic_epi32(upper, word, _mm512_set1_epi8(-0x80), 0xF8);  // upper | (word & 0x80)
    constexpr __mmask64 kOdd = 0xAAAAAAAAAAAAAAAA;
    return kPair == 0 ? _mm512_mask_blend_epi8(kOdd, lower, _mm512_slli_epi16(upper, 8))
                      : _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(lower, 8), upper);
  }
  template <int M, int NV, int kPair = 0>
  [[gnu::always_inline]] void step(F (&sums)[M][NV], const float* x, const __m512i (&words)[NV]) const {
    if constexpr (kPair < kActivations) {
      __m512bh pairs[NV];
      for (int v = 0; v < NV; ++v) pairs[v] = pair<kPair>(words[v]);
      for (int m = 0; m < M; ++m) {
        const auto xs = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const std::int32_t*>(x)[kPair * M + m]);
        for (int v = 0; v < NV; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], xs, pairs[v]);
      }
      step<M, NV, kPair + 1>(sums, x, words);
    }
  }
  template <int kPair = 0>
  [[gnu::always_inline]] void widen(__m512i word, std::int64_t width, float* to) const {
    if constexpr (kPair < kActivations) {
      _mm512_storeu_si512(to + kPair * width, (__m512i)pair<kPair>(word));
      widen<kPair + 1>(word, width, to);
    }
  }
};
#endif

// What was widened in memory: steps of W, of one row of floats or of pairs.
template <class W>
struct Widened {
  using Step = W;
  static constexpr int kActivations = W::kActivations;
  static constexpr bool kOfBytes = true;
};

// The next chunk is fetched in the order in which it lies; groups at once are not read in it.
[[gnu::always_inline]] inline void fetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

// Vectors of a tile: its sums and those of a group fill the registers.
constexpr int coded_vectors(int height, bool of_bytes) {
  return kLanes < kPanelStep ? Vec::vectors_for(height) : height <= (of_bytes ? 3 : 4) ? 4 : 2;
}

// kGroups neighbouring groups at once, each summed on its own: one group's few sums would wait for each
// other.
template <class Codes, int M, int NV, int kGroups>
[[gnu::always_inline]] inline void add_groups(const Codes& codes, const CodedOperands& o, std::int64_t group,
                                              std::int64_t steps, F (&totals)[M][NV]) {
  F sums[kGroups][M][NV];
  for (auto& sum : sums) {
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < NV; ++v) sum[m][v] = Vec::zero();
    }
  }
  const float* a = o.a + group * o.group_steps * M * Codes::kActivations;
  const std::byte* b = o.codes + group * o.group_steps * o.stride;
  const std::byte* ahead = b + o.ahead;
  for (std::int64_t s = 0; s < steps; ++s) {
    if constexpr (!requires { typename Codes::Step; }) {
      for (std::int64_t i = 0; i < kGroups * NV * kLanes * 4; i += 64) fetch(ahead + i);
      ahead += kGroups * o.stride;
    }
    for (int g = 0; g < kGroups; ++g) {
      const float* x = a + g * steps * M * Codes::kActivations;
      const std::byte* from = b + g * steps * o.stride;
      if constexpr (requires { typename Codes::Step; }) {
        Codes::Step::template step<M, NV>(sums[g], x, from);
      } else {
        Vec::I words[NV];
        for (int v = 0; v < NV; ++v)
          words[v] = Vec::load_ints(reinterpret_cast<const std::uint32_t*>(from) + v * kLanes);
        codes.template step<M, NV>(sums[g], x, words);
      }
    }
    a += M * Codes::kActivations;
    b += o.stride;
  }
  for (int g = 0; g < kGroups; ++g, ++group) {
    for (int v = 0; v < NV; ++v) {
      const F scale = Vec::load(o.scales + group * kPanel + v * kLanes);
      for (int m = 0; m < M; ++m) totals[m][v] = Vec::fma(sums[g][m][v], scale, totals[m][v]);
      if (o.group_sums == nullptr) continue;
      const F minimum = Vec::load(o.minima + group * kPanel + v * kLanes);
      for (int m = 0; m < M; ++m)
        totals[m][v] = Vec::fma(Vec::set1(o.group_sums[group * o.tokens + m]), minimum, totals[m][v]);
    }
  }
}

template <class Codes, int M, int NV>
void multiply_coded_tile(const Codes& codes, const CodedOperands& o) {
  F totals[M][NV];
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) totals[m][v] = Vec::load(o.sums + m * kPanel + v * kLanes);
  }
  constexpr int kGroups = M <= 2 ? 2 : 1;
  std::int64_t group = 0;
  for (; (group + kGroups) * o.group_steps <= o.steps; group += kGroups)
    add_groups<Codes, M, NV, kGroups>(codes, o, group, o.group_steps, totals);
  for (; group * o.group_steps < o.steps; ++group) {
    const std::int64_t left = o.steps - group * o.group_steps;
    add_groups<Codes, M, NV, 1>(codes, o, group, left < o.group_steps ? left : o.group_steps, totals);
  }
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) Vec::store(o.sums + m * kPanel + v * kLanes, totals[m][v]);
  }
}

// All tokens by `columns` rows of the panel, tile by tile.
template <class Codes>
void multiply_chunk(const Codes& codes, std::int64_t columns, std::int64_t bytes_of_row, CodedOperands o) {
  for (std::int64_t tokens = o.tokens; tokens > 0;) {
    const int height = Vec::tile_height(tokens, true);
    with_height(height, [&]<int M>() {
      const auto part = [&]<int NV>(std::int64_t column) {
        CodedOperands p = o;
        p.sums += column;
        p.codes += column * bytes_of_row;
        p.scales += column;
        p.minima += column;
        multiply_coded_tile<Codes, M, NV>(codes, p);
      };
      constexpr int kVectors = coded_vectors(M, Codes::kOfBytes);
      std::int64_t column = 0;
      for (; column + kVectors * kLanes <= columns; column += kVectors * kLanes)
        part.template operator()<kVectors>(column);
      for (; column < columns; column += kPanelStep) part.template operator()<kPanelStep / kLanes>(column);
    });
    tokens -= height;
    o.sums += height * kPanel;
    o.a += height * o.steps * Codes::kActivations;
    if (o.group_sums != nullptr) o.group_sums += height;
  }
}

[[gnu::always_inline]] inline F e4m3_to_floats(Vec::I code) {
  const Vec::I sign = Vec::left(Vec::bit_and(code, Vec::set1(0x80U)), 8);
  const Vec::I magnitude = Vec::left(Vec::bit_and(code, Vec::set1(0x7FU)), 7);
  return Vec::mul(Vec::halves_to_floats(Vec::bit_or(sign, magnitude)), Vec::set1(256.0F));
}

// Calls use(load) with load(p, i): a vector of scales from the i-th on.
void with_scales(ScaleType type, const auto& use) {
  const auto bytes = [&](const auto& value) {
    use([&](const std::byte* p, std::int64_t i) {
      return value(Vec::load_bytes(reinterpret_cast<const std::uint8_t*>(p) + i));
    });
  };
  switch (type) {
    case ScaleType::kF32:
      return use([](const std::byte* p, std::int64_t i) {
        return Vec::load(reinterpret_cast<const float*>(p) + i);
      });
    case ScaleType::kF16:
      return use([](const std::byte* p, std::int64_t i) {
        return Vec::load_as(reinterpret_cast<const Float16*>(p) + i);
      });
    case ScaleType::kU8:
      return bytes([](Vec::I x) { return Vec::signed_to_floats(x); });
    case ScaleType::kI8:
      return bytes([](Vec::I x) { return Vec::signed_to_floats(Vec::right_signed(Vec::left(x, 24), 24)); });
    case ScaleType::kE4m3:
      return bytes(e4m3_to_floats);
    default:  // E8M0; below 1 lies a subnormal
      return bytes([](Vec::I x) {
        const F power = Vec::as_floats(Vec::left(x, 23));
        return Vec::where_less(power, Vec::set1(0x1p-126F), Vec::set1(0x1p-127F), power);
      });
  }
}

// The scales of a chunk's groups and what is taken away, as f32 [groups][kPanel].
struct ChunkScales {
  const CodedLayout& layout;
  const std::byte* chunk;
  CodedChunk parts;
  std::int64_t rows, groups;

  // Those of one type that lie at `from`, times f32 [rows] at `supers`, or null, times `factor`.
  void read(ScaleType type, const std::byte* from, const float* supers, float factor, float* to) const {
    with_scales(type, [=, width = rows, count = groups](const auto& load) {
      const std::byte* const stored = from;  // locals, as vectors that are stored might be what is captured
      const std::int64_t stride = width, last = count * width;
      float* const out = to;
      for (std::int64_t row = 0; row < stride; row += kLanes) {
        const F factors =
            Vec::mul(Vec::set1(factor), supers == nullptr ? Vec::set1(1.0F) : Vec::load(supers + row));
        float* next = out + row;
        for (std::int64_t i = row; i < last; i += stride, next += kPanel)
          Vec::store(next, Vec::mul(load(stored, i), factors));
      }
    });
  }
  // factor: of the scales.
  void read_all(float factor, float* scales, float* minima) const {
    const auto* supers = layout.has_super_scales ? reinterpret_cast<const float*>(chunk) : nullptr;
    if (layout.offset == OffsetType::kZero) {
      read(layout.scale, chunk + parts.scales, supers, 1, scales);
      read(ScaleType::kU8, chunk + parts.offsets, nullptr, 1, minima);
      for (std::int64_t group = 0; group < groups; ++group) {
        for (std::int64_t i = group * kPanel; i < group * kPanel + rows; i += kLanes)
          Vec::store(minima + i, Vec::mul(Vec::load(minima + i), Vec::load(scales + i)));
      }
    } else if (layout.offset == OffsetType::kMinimum) {
      const auto* super_minima =
          layout.has_super_minima ? reinterpret_cast<const float*>(chunk + parts.super_minima) : nullptr;
      read(layout.minimum, chunk + parts.offsets, super_minima, 1, minima);
    }
    if (layout.offset != OffsetType::kZero || factor != 1)
      read(layout.scale, chunk + parts.scales, supers, factor, scales);
  }
};

// Rows of a widened chunk that lie side by side: those of one tile.
constexpr std::int64_t wide_width(std::int64_t rows) {
  return rows == kPanel ? coded_vectors(Vec::tile_height(kMaxPassTokens, true), true) * kLanes : kPanelStep;
}

// A chunk's codes as floats or pairs, [rows / width][steps * kActivations][width].
template <class Codes>
void widen_chunk(const Codes& codes, const CodedOperands& o, std::int64_t rows, float* to) {
  const std::int64_t width = wide_width(rows);
  for (std::int64_t s = 0; s < o.steps; ++s) {
    const auto* words = reinterpret_cast<const std::uint32_t*>(o.codes + s * o.stride);
    for (std::int64_t row = 0; row < rows; row += kLanes)
      codes.widen(Vec::load_ints(words + row), width,
                  to + ((row / width * o.steps + s) * Codes::kActivations) * width + row % width);
  }
}

// W: how what is widened is multiplied.
template <class Codes, class W>
void multiply_panels_of(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const CodedLayout& layout = *job.coded;
  const Codes codes(layout);
  float* const block = scratch + kMaxPassTokens * kPanel;
  float* const scales = block + kBlockDepth * kPanel;
  float* const minima = scales + kMaxGroups * kPanel;
  constexpr std::int64_t kWord = sizeof(std::uint32_t);
  const bool wide = job.tokens >= kWideTokens;
  const std::int64_t per_float = layout.word_columns / Codes::kActivations;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel;
    const std::int64_t left = round_up(job.out_features - first_row, kPanelStep);
    const std::int64_t rows = left < kPanel ? left : kPanel;
    const std::byte* chunk = job.weights + panel * coded_panel_bytes(layout, kPanel, job.padded);
    __builtin_memset(scratch, 0, static_cast<std::size_t>(job.tokens * kPanel) * sizeof(float));
    for (std::int64_t k = 0; k < job.padded; k += layout.span) {
      const std::int64_t columns = job.padded - k < layout.span ? job.padded - k : layout.span;
      const CodedChunk parts(layout, rows, columns);
      const std::int64_t groups = round_up(columns, layout.group) / layout.group;
      ChunkScales{layout, chunk, parts, rows, groups}.read_all(Codes::kScale, scales, minima);
      for (std::int64_t i = parts.end; i < parts.end + parts.codes; i += 64) fetch(chunk + i);
      const std::int64_t steps = columns / layout.word_columns;
      CodedOperands o = {.sums = scratch,
                         .a = job.activations + job.tokens * k / per_float,
                         .group_sums = layout.offset == OffsetType::kNone ? nullptr : group_sums(job, k),
                         .tokens = job.tokens,
                         .codes = chunk + parts.codes,
                         .ahead = parts.end,
                         .stride = rows * kWord,
                         .steps = steps,
                         .group_steps = layout.group / layout.word_columns,
                         .scales = scales,
                         .minima = minima};
      if (wide) {
        widen_chunk(codes, o, rows, block);
        o.steps *= Codes::kActivations;
        o.group_steps *= Codes::kActivations;
        const std::int64_t width = wide_width(rows);
        o.stride = width * W::kBytes;
        for (std::int64_t row = 0; row < rows; row += width) {
          o.codes = reinterpret_cast<const std::byte*>(block + row * o.steps);
          multiply_chunk(Widened<W>(), width, W::kBytes, o);
          o.sums += width;
          o.scales += width;
          o.minima += width;
        }
      } else {
        multiply_chunk(codes, rows, kWord, o);
      }
      chunk += parts.end;
    }
    store_sums(job, first_row, scratch);
  }
}

void multiply_coded_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const auto with_code = [&]<CodeType kCode>() {
#if defined(__AVX512BF16__)
    if (takes_pairs(job)) {
      constexpr bool kInt = kCode == CodeType::kInt;  // alone is small
      job.coded->is_small
          ? multiply_panels_of<WordPairs<kCode, kInt>, WeightPairs>(job, begin, end, scratch)
          : multiply_panels_of<WordPairs<kCode, false>, WeightPairs>(job, begin, end, scratch);
      return;
    }
#endif
    multiply_panels_of<WordFloats<kCode>, Weights<float>>(job, begin, end, scratch);
  };
  switch (job.coded->code) {
    case CodeType::kTable:
      return with_code.template operator()<CodeType::kTable>();
    case CodeType::kInt:
      return with_code.template operator()<CodeType::kInt>();
    default:
      return with_code.template operator()<CodeType::kE4m3>();
  }
}

}  // namespace
}  // namespace quire::simd
