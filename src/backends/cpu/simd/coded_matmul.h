#pragma once

// Products with packed matrices of codes (CodedLayout, kernels.h): out [tokens, out] = x [tokens, k] · wᵀ.
//
// Codes become bfloat16 where x is and the processor multiplies pairs of it, else float32; both hold every
// code's value exactly, those of x, too, where it is rounded. A group of columns is summed on its own, in
// order; its sum times its scale (and first that of x's codes) is added to the element's, and the group's
// minimum times x's sum over the group is taken away. So no weight is ever rounded, and an element's value
// does not depend on the tokens beside it. For few tokens the codes are widened in registers and read once,
// front to back; many tokens share a chunk that is widened in memory.

#include "backends/cpu/simd/matmul.h"

namespace quire::simd {
namespace {

// Some tokens times some rows of a chunk.
struct CodedOperands {
  float* sums;                // [tokens][kPanel]
  const float* a;             // [tiles][columns of the chunk][tokens of the tile], floats or pairs
  const float* group_sums;    // [groups][tokens], negative, or null
  const float* input_scales;  // the same
  std::int64_t tokens;        // of the job: from group to group
  const std::byte* codes;     // of each step, the rows side by side
  std::int64_t stride;        // bytes from step to step
  std::int64_t steps;         // of the chunk
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
  static constexpr int kActivations = kCode == CodeType::kTable ? 8 : 4;
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
// A word's codes as pairs of bfloat16.
template <CodeType kCode>
struct WordPairs {
  static constexpr int kActivations = kCode == CodeType::kTable ? 4 : 2;
  static constexpr float kScale = 1.0F;
  __m512i table;  // kTable: of the lower five bits, of which the last is not the code's; kE4m3: of subnormals

  explicit WordPairs(const CodedLayout& layout) {
    alignas(64) std::uint16_t values[32];
    for (int i = 0; i < 32; ++i) {
      const float value = kCode == CodeType::kTable ? layout.table[i % 16] : static_cast<float>(i) * 0x1p-9F;
      std::uint32_t bits;
      __builtin_memcpy(&bits, &value, sizeof(bits));
      values[i] = static_cast<std::uint16_t>(bits >> 16);
    }
    table = _mm512_load_si512(values);
  }
  template <int kPair>
  [[gnu::always_inline]] __m512bh pair(__m512i word) const {
    if constexpr (kCode == CodeType::kTable) {
      return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(word, 4 * kPair), table);
    } else if constexpr (kCode == CodeType::kInt) {
      const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(word, 24 - 8 * kPair), 24);
      const __m512i odd = _mm512_srai_epi32(_mm512_slli_epi32(word, 8 - 8 * kPair), 24);
      const auto bits = [](__m512i x) { return _mm512_castps_si512(_mm512_cvtepi32_ps(x)); };
      return (__m512bh)_mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(bits(even), 16), bits(odd));
    } else {
      const __m512i code = _mm512_srli_epi32(word, 8 * kPair);
      const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
      // From a bias of 7 to one of 127.
      const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
      const __mmask32 is_subnormal = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
      const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, table);
      const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000));
      return (__m512bh)_mm512_or_si512(value, sign);
    }
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
};

// Words of codes; others are fetched meanwhile. (A core of a Zen 5 reads 40 GB/s of int4 so, else 29, and of
// Q4_K 21 instead of 10.)
[[gnu::always_inline]] inline Vec::I fetch_words(const std::byte* words) {
  constexpr std::int64_t kAhead = 8192;
  _mm_prefetch(reinterpret_cast<const char*>(words + kAhead), _MM_HINT_T0);
  return Vec::load_ints(reinterpret_cast<const std::uint32_t*>(words));
}

// M tokens of a tile of kHeight.
template <class Codes, int M, int NV, int kHeight>
void multiply_coded_tile(const Codes& codes, const CodedOperands& o) {
  const float* a = o.a;
  const std::byte* b = o.codes;
  std::int64_t group = 0;
  F all[M][NV];
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) all[m][v] = Vec::load(o.sums + m * kPanel + v * kLanes);
  }
  for (std::int64_t step = 0; step < o.steps; step += o.group_steps, ++group) {
    const std::int64_t end = step + o.group_steps < o.steps ? step + o.group_steps : o.steps;
    F sums[M][NV];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::zero();
    }
    for (std::int64_t s = step; s < end; ++s) {
      if constexpr (requires { typename Codes::Step; }) {
        Codes::Step::template step<M, NV>(sums, a, b);
      } else {
        Vec::I words[NV];
        for (int v = 0; v < NV; ++v) words[v] = fetch_words(b + v * kLanes * 4);
        codes.template step<M, NV>(sums, a, words);
      }
      a += kHeight * Codes::kActivations;
      b += o.stride;
    }
    for (int m = 0; m < M && o.input_scales != nullptr; ++m) {
      const F scale = Vec::set1(o.input_scales[group * o.tokens + m]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::mul(sums[m][v], scale);
    }
    for (int v = 0; v < NV; ++v) {
      const F scale = Vec::load(o.scales + group * kPanel + v * kLanes);
      const F minimum = o.group_sums == nullptr ? scale : Vec::load(o.minima + group * kPanel + v * kLanes);
      for (int m = 0; m < M; ++m) {
        all[m][v] = Vec::fma(sums[m][v], scale, all[m][v]);
        if (o.group_sums != nullptr)
          all[m][v] = Vec::fma(Vec::set1(o.group_sums[group * o.tokens + m]), minimum, all[m][v]);
      }
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) Vec::store(o.sums + m * kPanel + v * kLanes, all[m][v]);
  }
}

// The tokens of a tile: where groups of columns are small three at a time, so that the sums over all groups
// stay in registers, too.
template <class Codes, int M, int NV>
void multiply_tokens(const Codes& codes, CodedOperands o) {
  if constexpr (requires { codes.template multiply<M, NV>(o); }) {
    codes.template multiply<M, NV>(o);
  } else {
    constexpr std::int64_t kSmallGroup = 16;  // steps
    constexpr bool kMayDivide = kLanes == 16 && M % 3 == 0 && M * NV > 12 && requires {
      typename Codes::Step;
    };
    if (!kMayDivide || o.group_steps > kSmallGroup) return multiply_coded_tile<Codes, M, NV, M>(codes, o);
    for (int m = 0; m < M; m += 3) {
      multiply_coded_tile<Codes, kMayDivide ? 3 : M, NV, M>(codes, o);
      o.sums += 3 * kPanel;
      o.a += 3;
      if (o.group_sums != nullptr) o.group_sums += 3;
      if (o.input_scales != nullptr) o.input_scales += 3;
    }
  }
}

// All tokens by `columns` rows of the panel, tile by tile.
template <class Codes>
void multiply_chunk(const Codes& codes, std::int64_t columns, std::int64_t bytes_of_row, CodedOperands o) {
  for (std::int64_t tokens = o.tokens; tokens > 0;) {
    const int height = Vec::tile_height(tokens);
    with_height(height, [&]<int M>() {
      const auto part = [&]<int NV>(std::int64_t column) {
        CodedOperands p = o;
        p.sums += column;
        p.codes += column * bytes_of_row;
        p.scales += column;
        p.minima += column;
        multiply_tokens<Codes, M, NV>(codes, p);
      };
      constexpr int kVectors = Vec::vectors_for(M);
      std::int64_t column = 0;
      for (; column + kVectors * kLanes <= columns; column += kVectors * kLanes)
        part.template operator()<kVectors>(column);
      for (; column < columns; column += kPanelStep) part.template operator()<kPanelStep / kLanes>(column);
    });
    tokens -= height;
    o.sums += height * kPanel;
    o.a += height * o.steps * Codes::kActivations;
    if (o.group_sums != nullptr) o.group_sums += height;
    if (o.input_scales != nullptr) o.input_scales += height;
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
    with_scales(type, [&](const auto& load) {
      for (std::int64_t group = 0; group < groups; ++group) {
        for (std::int64_t row = 0; row < rows; row += kLanes) {
          F value = load(from, group * rows + row);
          if (supers != nullptr) value = Vec::mul(value, Vec::load(supers + row));
          Vec::store(to + group * kPanel + row, Vec::mul(value, Vec::set1(factor)));
        }
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

// Words [steps][rows] as floats or pairs, [steps * kActivations][rows].
template <class Codes>
void widen_chunk(const Codes& codes, const std::byte* words, std::int64_t rows, std::int64_t steps,
                 float* to) {
  for (std::int64_t i = 0; i < steps; ++i, to += Codes::kActivations * rows) {
    for (std::int64_t row = 0; row < rows; row += kLanes, words += kLanes * sizeof(std::uint32_t))
      codes.widen(Vec::load_ints(reinterpret_cast<const std::uint32_t*>(words)), rows, to + row);
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
      const std::int64_t steps = columns / layout.word_columns;
      CodedOperands o = {.sums = scratch,
                         .a = job.activations + job.tokens * k / per_float,
                         .group_sums = layout.offset == OffsetType::kNone ? nullptr : group_values(job, k),
                         .input_scales = rounds_input(job) ? group_values(job, k) : nullptr,
                         .tokens = job.tokens,
                         .codes = chunk + parts.codes,
                         .stride = rows * kWord,
                         .steps = steps,
                         .group_steps = layout.group / layout.word_columns,
                         .scales = scales,
                         .minima = minima};
      if (wide) {
        widen_chunk(codes, o.codes, rows, steps, block);
        o.codes = reinterpret_cast<const std::byte*>(block);
        o.steps *= Codes::kActivations;
        o.group_steps *= Codes::kActivations;
        multiply_chunk(Widened<W>(), rows, W::kBytes, o);
      } else {
        multiply_chunk(codes, rows, kWord, o);
      }
      chunk += parts.end;
    }
    store_sums(job, first_row, scratch);
  }
}

// Calls function<kCode>().
[[gnu::always_inline]] inline void with_code(CodeType code, const auto& function) {
  switch (code) {
    case CodeType::kTable:
      return function.template operator()<CodeType::kTable>();
    case CodeType::kInt:
      return function.template operator()<CodeType::kInt>();
    default:
      return function.template operator()<CodeType::kE4m3>();
  }
}

// Sums of a panel of whole rows, f32 or i32 [tokens][kPanel], times the scales of both sides.
template <bool kInts>
void scale_sums(const LinearJob& job, const std::byte* panel, std::int64_t rows, float* sums) {
  const CodedLayout& layout = *job.coded;
  const CodedChunk parts(layout, rows, job.padded < layout.span ? job.padded : layout.span);
  float scales[kPanel];
  ChunkScales{layout, panel, parts, rows, 1}.read(layout.scale, panel + parts.scales, nullptr, 1, scales);
  for (std::int64_t t = 0; t < job.tokens; ++t, sums += kPanel) {
    const F scale = Vec::set1(rounds_input(job) ? group_values(job, 0)[t] : 1.0F);
    for (std::int64_t i = 0; i < rows; i += kLanes) {
      F sum = Vec::load(sums + i);
      if constexpr (kInts) sum = Vec::signed_to_floats(Vec::as_bits(sum));
      Vec::store(sums + i, Vec::mul(Vec::mul(sum, scale), Vec::load(scales + i)));
    }
  }
}

#if defined(__AVX512VNNI__)
// Signed bytes on both sides: sums are whole numbers, which are the same in any order.
struct WordBytes {
  static constexpr int kActivations = 1;
  // GCC 12 keeps an array of __m512i in memory.
  using Ints [[gnu::vector_size(64)]] = int;
  // VPDPBUSD takes one side unsigned: weights are 128 more here. o.sums: i32.
  template <int M, int NV>
  static void multiply(const CodedOperands& o) {
    Ints sums[M][NV];
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < NV; ++v) sums[m][v] = (Ints)_mm512_loadu_si512(o.sums + m * kPanel + v * kLanes);
    }
    const auto* x = reinterpret_cast<const std::int32_t*>(o.a);
    const std::byte* codes = o.codes;
    for (std::int64_t s = 0; s < o.steps; ++s, x += M, codes += o.stride) {
      __m512i words[NV];
      for (int v = 0; v < NV; ++v)
        words[v] = _mm512_xor_si512(_mm512_loadu_si512(codes + v * 64), _mm512_set1_epi8(-128));
      for (int m = 0; m < M; ++m) {
        const __m512i xs = _mm512_set1_epi32(x[m]);
        for (int v = 0; v < NV; ++v)
          sums[m][v] = (Ints)_mm512_dpbusd_epi32((__m512i)sums[m][v], words[v], xs);
      }
    }
    for (int m = 0; m < M; ++m) {
      for (int v = 0; v < NV; ++v) _mm512_storeu_si512(o.sums + m * kPanel + v * kLanes, (__m512i)sums[m][v]);
    }
  }
};

void multiply_byte_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const CodedLayout& layout = *job.coded;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel;
    const std::int64_t left = round_up(job.out_features - first_row, kPanelStep);
    const std::int64_t rows = left < kPanel ? left : kPanel;
    const std::byte* const first = job.weights + panel * coded_panel_bytes(layout, kPanel, job.padded);
    const std::byte* chunk = first;
    for (std::int64_t t = 0; t < job.tokens; ++t) {  // what the 128 more will add
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < job.padded; k += layout.group) sum -= byte_sums(job, k)[t];
      for (std::int64_t i = 0; i < rows; i += kLanes)
        _mm512_storeu_si512(scratch + t * kPanel + i, _mm512_set1_epi32(sum * 128));
    }
    for (std::int64_t k = 0; k < job.padded; k += layout.span) {
      const std::int64_t columns = job.padded - k < layout.span ? job.padded - k : layout.span;
      const CodedChunk parts(layout, rows, columns);
      multiply_chunk(WordBytes(), rows, sizeof(std::uint32_t),
                     {.sums = scratch,
                      .a = job.activations + job.tokens * k / layout.word_columns,
                      .group_sums = nullptr,
                      .input_scales = nullptr,
                      .tokens = job.tokens,
                      .codes = chunk + parts.codes,
                      .stride = rows * std::int64_t{sizeof(std::uint32_t)},
                      .steps = columns / layout.word_columns,
                      .group_steps = 0,
                      .scales = nullptr,
                      .minima = nullptr});
      chunk += parts.end;
    }
    scale_sums<true>(job, first, rows, scratch);
    store_sums(job, first_row, scratch);
  }
}
#endif

void multiply_coded_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
#if defined(__AVX512VNNI__)
  if (takes_bytes(job)) return multiply_byte_panels(job, begin, end, scratch);
#endif
  with_code(job.coded->code, [&]<CodeType kCode>() {
#if defined(__AVX512BF16__)
    if (takes_pairs(job)) {
      multiply_panels_of<WordPairs<kCode>, WeightPairs>(job, begin, end, scratch);
      return;
    }
#endif
    multiply_panels_of<WordFloats<kCode>, Weights<float>>(job, begin, end, scratch);
  });
}

}  // namespace
}  // namespace quire::simd
