#pragma once

// Products with packed matrices of codes (CodedLayout, kernels.h): out [tokens, out] = x [tokens, k] · wᵀ.
//
// Codes become bfloat16 where x is and the processor multiplies pairs of it, else float32; both hold every
// code's value exactly, those of x, too, where it is rounded. A group of columns is summed on its own, in
// order; its sum times its scale (and first that of x's codes) is added to the element's, and the group's
// minimum times x's sum over the group is taken away. So no weight is ever rounded, and an element's value
// does not depend on the tokens beside it. For few tokens the codes are widened in registers and read once,
// with the next chunk fetched meanwhile; many tokens share a chunk that is widened in memory.
//
// Reached on two cores of an EPYC: one token at the rate that bfloat16 weights are read at; (Zen 5) 512
// tokens at 415 to 470 GFLOP/s a core where bfloat16 weights make 490.

#include "backends/cpu/simd/coded_words.h"

namespace quire::simd {
namespace {

// Some tokens times some rows of a chunk.
struct CodedOperands {
  float* sums;                          // [tokens][kPanel]
  const float* a;                       // [tiles][columns of the chunk][tokens of the tile], floats or pairs
  const float* group_sums = nullptr;    // of -x, [groups][tokens], or null
  const float* input_scales = nullptr;  // the same
  std::int64_t tokens;                  // of the job: from group to group
  const std::byte* codes;               // of each step, the rows side by side
  std::int64_t ahead;                   // bytes from codes to what is fetched meanwhile
  std::int64_t stride;                  // bytes from step to step
  std::int64_t steps;                   // of the chunk
  std::int64_t group_steps = 0;
  const float* scales = nullptr;  // [groups][kPanel]
  const float* minima = nullptr;  // the same
};

constexpr int kTallestWidened = 3;  // as kTallest of codes (coded_words.h)

// What was widened in memory: steps of W, of one row of floats or of pairs.
template <class W>
struct Widened {
  using Step = W;
  static constexpr int kActivations = W::kActivations;
  static constexpr int kTallest = kTallestWidened;
};

// The words of a step's rows, those of a row `stride` bytes apart.
template <int kWords>
[[gnu::always_inline]] inline void load_words(const std::byte* from, std::int64_t stride,
                                              Vec::I (&words)[kWords]) {
  for (int i = 0; i < kWords; ++i)
    words[i] = Vec::load_ints(reinterpret_cast<const std::uint32_t*>(from + i * stride));
}

// Vectors of a tile: its sums and those of a group fill the registers.
constexpr int coded_vectors(int height, int tallest) {
  return kLanes < kPanelStep ? Vec::vectors_for(height) : height <= tallest ? 4 : 2;
}

// Of tiles of so many tokens, whose few sums would wait for each other.
constexpr int groups_at_once(int height) { return height <= 2 ? 2 : 1; }

// kGroups neighbouring groups at once, each summed on its own.
template <class Codes, int M, int NV, int kGroups>
[[gnu::always_inline]] inline void add_groups(const Codes& codes, const CodedOperands& o, std::int64_t group,
                                              std::int64_t steps, F (&totals)[M][NV]) {
  F sums[kGroups][M][NV];
  for (auto& sum : sums) {
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < NV; ++v) sum[m][v] = Vec::zero();
  }
  const float* a = o.a + group * o.group_steps * M * Codes::kActivations;
  const std::byte* b = o.codes + group * o.group_steps * o.stride;
  const std::byte* ahead = b + o.ahead;
  for (std::int64_t s = 0; s < steps; ++s) {
    if constexpr (!requires { typename Codes::Step; }) {
      // The next chunk, in the order in which it lies; groups at once are not read in it.
      fetch(ahead, kGroups * Codes::kWords * NV * kLanes * 4);
      ahead += kGroups * o.stride;
    }
    for (int g = 0; g < kGroups; ++g) {
      const float* x = a + g * steps * M * Codes::kActivations;
      const std::byte* from = b + g * steps * o.stride;
      if constexpr (requires { typename Codes::Step; }) {
        Codes::Step::template step<M, NV>(sums[g], x, from);
      } else {
        Vec::I words[NV][Codes::kWords];
        for (int v = 0; v < NV; ++v) load_words(from + v * kLanes * 4, o.stride / Codes::kWords, words[v]);
        codes.template step<M, NV>(sums[g], x, words);
      }
    }
    a += M * Codes::kActivations;
    b += o.stride;
  }
  for (int g = 0; g < kGroups; ++g, ++group) {
    for (int m = 0; m < M && o.input_scales != nullptr; ++m) {
      const F scale = Vec::set1(o.input_scales[group * o.tokens + m]);
      for (int v = 0; v < NV; ++v) sums[g][m][v] *= scale;
    }
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
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < NV; ++v) totals[m][v] = Vec::load(o.sums + m * kPanel + v * kLanes);
  constexpr int kGroups = groups_at_once(M);
  std::int64_t group = 0;
  for (; (group + kGroups) * o.group_steps <= o.steps; group += kGroups)
    add_groups<Codes, M, NV, kGroups>(codes, o, group, o.group_steps, totals);
  for (; group * o.group_steps < o.steps; ++group) {
    const std::int64_t left = o.steps - group * o.group_steps;
    add_groups<Codes, M, NV, 1>(codes, o, group, smaller(left, o.group_steps), totals);
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < NV; ++v) Vec::store(o.sums + m * kPanel + v * kLanes, totals[m][v]);
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
        if constexpr (requires { Codes::kWords; })
          p.ahead += (groups_at_once(M) * Codes::kWords - 1) * column * bytes_of_row;
        if (p.scales != nullptr) {
          p.scales += column;
          p.minima += column;
        }
        if constexpr (requires { codes.template multiply<M, NV>(p); }) {
          codes.template multiply<M, NV>(p);
        } else {
          multiply_coded_tile<Codes, M, NV>(codes, p);
        }
      };
      constexpr int kVectors = coded_vectors(M, Codes::kTallest);
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
      return bytes([](Vec::I x) { return e4m3_as_halves(x) * Vec::set1(256.0F); });
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
        const F factors = Vec::set1(factor) * (supers == nullptr ? Vec::set1(1.0F) : Vec::load(supers + row));
        float* next = out + row;
        for (std::int64_t i = row; i < last; i += stride, next += kPanel)
          Vec::store(next, load(stored, i) * factors);
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
          Vec::store(minima + i, Vec::load(minima + i) * Vec::load(scales + i));
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
  return rows == kPanel ? coded_vectors(Vec::tile_height(kMaxPassTokens, true), kTallestWidened) * kLanes
                        : kPanelStep;
}

// Words of a chunk [steps][kWords][rows] as floats or pairs, [rows / width][steps * kActivations][width].
template <class Codes>
void widen_chunk(const Codes& codes, const std::byte* from, std::int64_t rows, std::int64_t steps,
                 std::int64_t width, float* to) {
  for (std::int64_t s = 0; s < steps; ++s, from += Codes::kWords * rows * 4) {
    for (std::int64_t row = 0; row < rows; row += kLanes) {
      Vec::I words[Codes::kWords];
      load_words(from + row * 4, rows * 4, words);
      codes.widen(words, width, to + ((row / width * steps + s) * Codes::kActivations) * width + row % width);
    }
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
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel, rows = panel_width(job.out_features, panel);
    const std::byte* chunk = job.weights + panel * coded_panel_bytes(layout, kPanel, job.padded);
    __builtin_memset(scratch, 0, static_cast<std::size_t>(job.tokens * kPanel) * sizeof(float));
    for (std::int64_t k = 0; k < job.padded; k += layout.span) {
      const std::int64_t columns = smaller(job.padded - k, layout.span);
      const CodedChunk parts(layout, rows, columns);
      const std::int64_t groups = round_up(columns, layout.group) / layout.group;
      ChunkScales{layout, chunk, parts, rows, groups}.read_all(Codes::kScale, scales, minima);
      fetch(chunk + parts.end, parts.codes);
      const std::int64_t steps = columns / Codes::kColumns;
      CodedOperands o = {.sums = scratch,
                         .a = job.activations + job.tokens * k * Codes::kActivations / Codes::kColumns,
                         .group_sums = layout.offset == OffsetType::kNone ? nullptr : group_values(job, k),
                         .input_scales = rounds_input(job) ? group_values(job, k) : nullptr,
                         .tokens = job.tokens,
                         .codes = chunk + parts.codes,
                         .ahead = parts.end,
                         .stride = Codes::kWords * rows * kWord,
                         .steps = steps,
                         .group_steps = layout.group / Codes::kColumns,
                         .scales = scales,
                         .minima = minima};
      if (wide) {
        const std::int64_t width = wide_width(rows);
        widen_chunk(codes, o.codes, rows, o.steps, width, block);
        o.steps *= Codes::kActivations;
        o.group_steps *= Codes::kActivations;
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

// Calls function<kCode>().
[[gnu::always_inline]] inline void with_code(PackedCode code, const auto& function) {
  switch (code) {
    case PackedCode::k4Bits:
      return function.template operator()<PackedCode::k4Bits>();
    case PackedCode::k6Bits:
      return function.template operator()<PackedCode::k6Bits>();
    case PackedCode::k8Bits:
      return function.template operator()<PackedCode::k8Bits>();
    default:
      return function.template operator()<PackedCode::kE4m3>();
  }
}

// Sums of a panel of whole rows, f32 or i32 [tokens][kPanel], times the scales of both sides.
template <bool kInts>
void scale_sums(const LinearJob& job, const std::byte* panel, std::int64_t rows, float* sums) {
  const CodedLayout& layout = *job.coded;
  const CodedChunk parts(layout, rows, smaller(job.padded, layout.span));
  float scales[kPanel];
  ChunkScales{layout, panel, parts, rows, 1}.read(layout.scale, panel + parts.scales, nullptr, 1, scales);
  for (std::int64_t t = 0; t < job.tokens; ++t, sums += kPanel) {
    const F scale = Vec::set1(rounds_input(job) ? group_values(job, 0)[t] : 1.0F);
    for (std::int64_t i = 0; i < rows; i += kLanes) {
      F sum = Vec::load(sums + i);
      if constexpr (kInts) sum = Vec::signed_to_floats(Vec::as_bits(sum));
      Vec::store(sums + i, sum * scale * Vec::load(scales + i));
    }
  }
}

#if defined(__AVX512VNNI__)
// Signed bytes on both sides: sums are whole numbers, which are the same in any order.
struct WordBytes {
  static constexpr int kActivations = 1;
  static constexpr int kTallest = 4;
  // GCC 12 keeps an array of __m512i in memory.
  using Ints [[gnu::vector_size(64)]] = int;
  // VPDPBUSD takes one side unsigned: weights are 128 more here. o.sums: i32.
  template <int M, int NV>
  static void multiply(const CodedOperands& o) {
    Ints sums[M][NV];
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < NV; ++v) sums[m][v] = (Ints)_mm512_loadu_si512(o.sums + m * kPanel + v * kLanes);
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
    for (int m = 0; m < M; ++m)
      for (int v = 0; v < NV; ++v) _mm512_storeu_si512(o.sums + m * kPanel + v * kLanes, (__m512i)sums[m][v]);
  }
};

void multiply_byte_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const CodedLayout& layout = *job.coded;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel, rows = panel_width(job.out_features, panel);
    const std::byte* const first = job.weights + panel * coded_panel_bytes(layout, kPanel, job.padded);
    const std::byte* chunk = first;
    for (std::int64_t t = 0; t < job.tokens; ++t) {  // what the 128 more will add
      std::int32_t sum = 0;
      for (std::int64_t k = 0; k < job.padded; k += layout.group) sum -= byte_sums(job, k)[t];
      for (std::int64_t i = 0; i < rows; i += kLanes)
        _mm512_storeu_si512(scratch + t * kPanel + i, _mm512_set1_epi32(sum * 128));
    }
    for (std::int64_t k = 0; k < job.padded; k += layout.span) {
      const std::int64_t columns = smaller(job.padded - k, layout.span);
      const CodedChunk parts(layout, rows, columns);
      multiply_chunk(WordBytes(), rows, sizeof(std::uint32_t),
                     {.sums = scratch,
                      .a = job.activations + job.tokens * k / step_columns(layout.code),
                      .tokens = job.tokens,
                      .codes = chunk + parts.codes,
                      .ahead = parts.end,
                      .stride = rows * std::int64_t{sizeof(std::uint32_t)},
                      .steps = columns / step_columns(layout.code)});
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
  with_code(job.coded->code, [&]<PackedCode kCode>() {
#if defined(__AVX512BF16__)
    if (takes_pairs(job)) return multiply_panels_of<WordPairs<kCode>, WeightPairs>(job, begin, end, scratch);
#endif
    multiply_panels_of<WordFloats<kCode>, Weights<float>>(job, begin, end, scratch);
  });
}

// Backend::linear of a matrix in panels, plain or of codes.
void linear_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  if (job.coded != nullptr) return multiply_coded_panels(job, begin, end, scratch);
#if defined(__AVX512BF16__)
  if (takes_pairs(job)) return multiply_panels<WeightPairs, false>(job, begin, end, scratch);
#endif
  dispatch(job.dtype, [&]<typename T>() {
    job.tokens >= kWideTokens ? multiply_panels<Weights<T>, true>(job, begin, end, scratch)
                              : multiply_panels<Weights<T>, false>(job, begin, end, scratch);
  });
}

}  // namespace
}  // namespace quire::simd
