#pragma once

// Products of packed matrices: out [tokens, out] = x [tokens, k] · wᵀ.
//
// A tile of M tokens and NV vectors of rows stays in registers while k runs; every element is summed over k
// in order, in one lane, so its value does not depend on the tile. Between blocks of k the sums are stored
// and loaded, which changes nothing. For few tokens the weights are used as they lie, and read once, front to
// back: their bytes are the limit. For many tokens arithmetic is; they share weights widened to float32.
//
// Reached on two cores of an EPYC with AVX2 and bf16 weights: one token 38 of the 37 GB/s that the probe
// reads; 8 tokens 149, 512 tokens 154 of 180 GFLOP/s.

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

// sums += x · w. Whichever are fewer stay in registers: the M values of x, or the NV vectors of w.
template <int M, int NV>
[[gnu::always_inline]] inline void add_products(F (&sums)[M][NV], const float* x, const auto& weight) {
  if constexpr (M < NV) {
    F xs[M];
    for (int m = 0; m < M; ++m) xs[m] = Vec::set1(x[m]);
    for (int v = 0; v < NV; ++v) {
      const F w = weight(v);
      for (int m = 0; m < M; ++m) sums[m][v] = Vec::fma(xs[m], w, sums[m][v]);
    }
  } else {
    F w[NV];
    for (int v = 0; v < NV; ++v) w[v] = weight(v);
    for (int m = 0; m < M; ++m) {
      const F xs = Vec::set1(x[m]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::fma(xs, w[v], sums[m][v]);
    }
  }
}

// How a step of the sum reads weights: kDepth values of k for each row, of kBytes together; and kActivations
// floats of each token.
template <typename T>
struct Weights {
  static constexpr int kDepth = 1, kBytes = sizeof(T), kActivations = 1;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* x, const std::byte* w) {
    add_products(sums, x, [&](int v) { return Vec::load_as(reinterpret_cast<const T*>(w) + v * kLanes); });
  }
};

template <>
struct Weights<BFloat16> {
  static constexpr int kDepth = 2, kBytes = 4, kActivations = 2;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* x, const std::byte* w) {
    add_products(sums, x, [&](int v) { return Vec::even_bf16(w + v * kLanes * kBytes); });
    add_products(sums, x + M, [&](int v) { return Vec::odd_bf16<M * NV>(w + v * kLanes * kBytes); });
  }
};

#if defined(__AVX512BF16__)
// A pair of bfloat16 of x in each float of the activations.
struct WeightPairs {
  static constexpr int kDepth = 2, kBytes = 4, kActivations = 1;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* x, const std::byte* w) {
    __m512bh pairs[NV];
    for (int v = 0; v < NV; ++v) pairs[v] = (__m512bh)_mm512_loadu_si512(w + v * kLanes * kBytes);
    for (int m = 0; m < M; ++m) {
      const auto xs = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const std::int32_t*>(x)[m]);
      for (int v = 0; v < NV; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], xs, pairs[v]);
    }
  }
};
#endif

// Some tokens times some rows of weights.
struct Operands {
  float* sums;            // [tokens][kPanel]
  const float* a;         // [tiles][k][tokens of the tile]
  const std::byte* b;     // of each step, the rows side by side
  std::int64_t b_stride;  // bytes from step to step
  std::int64_t steps;
  const std::byte* ahead;  // what to fetch meanwhile, as many bytes as are read of b
};

template <class W, int M, int NV, bool kFetch>
void multiply_tile(const Operands& o) {
  F sums[M][NV];
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < NV; ++v) sums[m][v] = Vec::load(o.sums + m * kPanel + v * kLanes);
  const float* a = o.a;
  const std::byte* b = o.b;
  const std::byte* ahead = o.ahead;
  for (std::int64_t s = 0; s < o.steps; ++s) {
    if constexpr (kFetch) {
      constexpr int kBytes = NV * kLanes * W::kBytes;
      for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + i), _MM_HINT_T0);
      ahead += kBytes;
    }
    W::template step<M, NV>(sums, a, b);
    a += M * W::kActivations;
    b += o.b_stride;
  }
  for (int m = 0; m < M; ++m)
    for (int v = 0; v < NV; ++v) Vec::store(o.sums + m * kPanel + v * kLanes, sums[m][v]);
}

// M tokens times all of `columns` rows, a multiple of kPanelStep.
template <class W, int M, bool kFetch>
void multiply_columns(std::int64_t columns, const Operands& o) {
  const auto part = [&]<int NV>(std::int64_t column) {
    Operands p = o;
    p.sums += column;
    p.b += column * W::kBytes;
    if constexpr (kFetch) p.ahead += column * W::kBytes * o.steps;
    multiply_tile<W, M, NV, kFetch>(p);
  };
  constexpr int kVectors = Vec::vectors_for(M);
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= columns; column += kVectors * kLanes)
    part.template operator()<kVectors>(column);
  for (; column < columns; column += kPanelStep) part.template operator()<kPanelStep / kLanes>(column);
}

// Calls function<M>() with M = height.
template <int M = Vec::kMaxHeight>
[[gnu::always_inline]] inline void with_height(int height, const auto& function) {
  if constexpr (M > 0) {
    if (height == M) {
      function.template operator()<M>();
    } else {
      with_height<M - 1>(height, function);
    }
  }
}

// All tokens, tile by tile.
template <class W, bool kFetch>
void multiply(std::int64_t tokens, std::int64_t columns, Operands o) {
  for (bool first = true; tokens > 0; first = false) {
    const int height = Vec::tile_height(tokens, false);
    with_height(height, [&]<int M>() {
      if (kFetch && first) {
        multiply_columns<W, M, kFetch>(columns, o);
      } else {
        multiply_columns<W, M, false>(columns, o);
      }
    });
    tokens -= height;
    o.sums += height * kPanel;
    o.a += height * o.steps * W::kActivations;
  }
}

// Rows a widened block keeps side by side: those of one tile.
constexpr std::int64_t kWideRows = Vec::vectors_for(Vec::tile_height(kMaxPassTokens, false)) * kLanes;

// A block of a panel as float32, [rows / width][depth][width].
void widen(DType dtype, const std::byte* from, std::int64_t rows, std::int64_t depth, std::int64_t width,
           float* to) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t row = 0; row < rows; row += kLanes) {
      float* out = to + (row / width * depth + k) * width + row % width;
      if (dtype == DType::kBF16) {
        const std::byte* pairs = from + (k / 2 * rows + row) * 4;
        Vec::store(out, k % 2 == 0 ? Vec::even_bf16(pairs) : Vec::odd_bf16(pairs));
      } else if (dtype == DType::kF16) {
        Vec::store(out, Vec::load_as(reinterpret_cast<const Float16*>(from) + k * rows + row));
      } else {
        Vec::store(out, Vec::load(reinterpret_cast<const float*>(from) + k * rows + row));
      }
    }
  }
}

void store_sums(const LinearJob& job, std::int64_t first_row, const float* sums) {
  const std::int64_t rows = smaller(job.out_features - first_row, kPanel);
  dispatch(job.out.dtype, [&]<typename T>() {
    for (std::int64_t t = 0; t < job.tokens; ++t) {
      T* out = job.out.row<T>(t) + first_row;
      for (std::int64_t i = 0; i < rows; i += kLanes) {
        const int count = lanes_left(i, rows);
        F sum = Vec::load(sums + t * kPanel + i);
        if (job.bias != nullptr) sum += load_some(job.bias + first_row + i, count);
        store_some(out + i, sum, count);
      }
    }
  });
}

[[gnu::always_inline]] inline bool rounds_input(const LinearJob& job) {
  return job.coded != nullptr && job.coded->input.code != InputFormat::Code::kNone;
}

// Whole numbers on both sides.
[[gnu::always_inline]] inline bool takes_bytes([[maybe_unused]] const LinearJob& job) {
#if defined(__AVX512VNNI__)
  return rounds_input(job) && job.coded->input.code == InputFormat::Code::kI8;
#else
  return false;
#endif
}

// Codes of x are all bfloat16.
[[gnu::always_inline]] inline bool takes_pairs([[maybe_unused]] const LinearJob& job) {
#if defined(__AVX512BF16__)
  return job.dtype == DType::kBF16 && (job.x.dtype == DType::kBF16 || rounds_input(job));
#else
  return false;
#endif
}

template <class W, bool kWiden>
void multiply_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int64_t depth = job.padded;
  const std::int64_t most = job.block;
  constexpr std::int64_t kElement = W::kBytes / W::kDepth;
  float* block = scratch + kMaxPassTokens * kPanel;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel, rows = panel_width(job.out_features, panel);
    const std::byte* weights = job.weights + first_row * depth * kElement;
    __builtin_memset(scratch, 0, static_cast<std::size_t>(job.tokens * kPanel) * sizeof(float));
    for (std::int64_t k = 0; k < depth; k += most) {
      const std::int64_t count = smaller(depth - k, most);
      const std::byte* from = weights + k * rows * kElement;
      const float* a = job.activations + job.tokens * k * W::kActivations / W::kDepth;
      if constexpr (kWiden) {
        const std::int64_t width = rows == kPanel ? kWideRows : kPanelStep;
        widen(job.dtype, from, rows, count, width, block);
        for (std::int64_t row = 0; row < rows; row += width) {
          multiply<Weights<float>, false>(
              job.tokens, width,
              {scratch + row, a, reinterpret_cast<const std::byte*>(block + row * count),
               width * Weights<float>::kBytes, count, nullptr});
        }
      } else {
        multiply<W, true>(
            job.tokens, rows,
            {scratch, a, from, rows * W::kBytes, count / W::kDepth, from + rows * most * kElement});
      }
    }
    store_sums(job, first_row, scratch);
  }
}

// Some tokens, [tokens][depth], become a tile's, [depth][tokens].
template <int M>
void interleave(const std::int32_t* from, std::int64_t depth, std::int32_t* to) {
  for (std::int64_t k = 0; k < depth; ++k)
    for (int m = 0; m < M; ++m) to[k * M + m] = from[m * kBlockDepth + k];
}

// A token's negative sums of x over groups of columns, or the scales of its codes there, [groups][tokens]
// behind all of x.
[[gnu::always_inline]] inline float* group_values(const LinearJob& job, std::int64_t k) {
  const std::int64_t all = round_up(job.tokens, 16) * round_up(job.padded, 32);
  return job.activations + all + k / job.coded->group * job.tokens;
}

// Where bytes are taken, the sums of x's codes over groups, behind their scales.
[[gnu::always_inline]] inline std::int32_t* byte_sums(const LinearJob& job, std::int64_t k) {
  return reinterpret_cast<std::int32_t*>(group_values(job, round_up(job.padded, job.coded->group) + k));
}

// The nearest E4M3, ties to even: a sum with 1.5 * 2^23 last places has no finer ones.
[[gnu::always_inline]] inline F round_to_e4m3(F x) {
  const F bounded = Vec::max(Vec::set1(-448.0F), Vec::min(Vec::set1(448.0F), x));
  const F power = Vec::as_floats(Vec::as_bits(bounded) & Vec::set1(0x7F800000U));
  const F places = Vec::max(Vec::set1(0x1p-6F), power) * Vec::set1(0x1.8p20F);
  return bounded + places - places;
}

// As quantize_input has it, the scales of x's codes, of tokens [begin, end).
void scale_inputs(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  const CodedLayout& layout = *job.coded;
  const float most = layout.input.code == InputFormat::Code::kE4m3 ? 448.0F : 127.0F;
  const auto scale_of = [&]<typename T>(const T* x, std::int64_t n) {
    if (layout.input.scale != 0) return layout.input.scale;
    F largest = Vec::zero();
    bool is_nan = false;
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const F value = load_some(x + i, lanes_left(i, n));
      is_nan |= Vec::any_nan(value);
      largest = Vec::max(largest, Vec::max(value, Vec::zero() - value));
    }
    const float top = max_lanes(largest);
    return is_nan ? __builtin_nanf("") : top > 0 ? top / most : 1;
  };
  dispatch(job.x.dtype, [&]<typename T>() {
    for (std::int64_t token = begin; token < end; ++token) {
      const T* x = job.x.row<const T>(token);
      for (std::int64_t k = 0; k < job.in_features; k += layout.input_block) {
        const std::int64_t count = smaller(job.in_features - k, layout.input_block);
        const float scale = scale_of(x + k, count);
        for (std::int64_t i = 0; i < count; i += layout.group) group_values(job, k + i)[token] = scale;
      }
    }
  });
}

#if defined(__AVX512VNNI__)
// Four to a word, as those of a matrix are.
[[gnu::always_inline]] inline void store_bytes(std::int8_t* to, __m512 whole) {
  const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
  const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(whole));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_shuffle_epi8(bytes, order));
}
#endif

// Elements [k, k + count) of a token as codes, each as the number that it stands for: float32, pairs or
// bytes.
void read_codes(const LinearJob& job, std::int64_t token, std::int64_t k, std::int64_t count, float* to) {
  const CodedLayout& layout = *job.coded;
  dispatch(job.x.dtype, [&]<typename T>() {
    const T* from = job.x.row<const T>(token) + k;
    for (std::int64_t begin = 0; begin < count; begin += layout.group) {
      const std::int64_t end = smaller(count, begin + layout.group);
      const F scale = Vec::set1(group_values(job, k + begin)[token]);
      for (std::int64_t i = begin; i < end; i += kLanes) {
        const F value = load_some(from + i, lanes_left(i, end)) / scale;
        const F code = layout.input.code == InputFormat::Code::kE4m3
                           ? round_to_e4m3(value)
                           : Vec::round(Vec::max(Vec::set1(-127.0F), Vec::min(Vec::set1(127.0F), value)));
#if defined(__AVX512VNNI__)
        if (takes_bytes(job)) {
          store_bytes(reinterpret_cast<std::int8_t*>(to) + i, code);
          continue;
        }
#endif
        takes_pairs(job) ? Vec::store_as(reinterpret_cast<BFloat16*>(to) + i, code)
                         : Vec::store(to + i, code);
      }
    }
  });
}

// Zeros behind `there` elements.
template <typename T>
void clear_rest(T* values, std::int64_t there, std::int64_t count) {
  for (std::int64_t i = there; i < count; ++i) values[i] = {};
}

// Elements [k, k + count) of a token as float32, pairs or bytes; beyond the last one zeros.
void read_activations(const LinearJob& job, std::int64_t token, std::int64_t k, std::int64_t count,
                      float* to) {
  const std::int64_t there = smaller(job.in_features - k, count);
  if (rounds_input(job)) {
    read_codes(job, token, k, there, to);
  } else if (takes_pairs(job)) {
    __builtin_memcpy(to, job.x.row<const BFloat16>(token) + k,
                     static_cast<std::size_t>(there) * sizeof(BFloat16));
  } else {
    dispatch(job.x.dtype, [&]<typename T>() {
      const T* from = job.x.row<const T>(token) + k;
      for (std::int64_t i = 0; i < there; i += kLanes)
        Vec::store(to + i, load_some(from + i, lanes_left(i, there)));
    });
  }
  if (takes_bytes(job)) return clear_rest(reinterpret_cast<std::int8_t*>(to), there, count);
  takes_pairs(job) ? clear_rest(reinterpret_cast<BFloat16*>(to), there, count) : clear_rest(to, there, count);
}

// Writes the sums of -x over the columns [k, k + count), which `values` has as read_activations leaves them.
void sum_groups(const LinearJob& job, std::int64_t token, std::int64_t k, std::int64_t count,
                const float* values) {
  if (job.coded == nullptr) return;
  const std::int64_t group = job.coded->group;
  if (takes_bytes(job)) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += reinterpret_cast<const std::int8_t*>(values)[i];
    byte_sums(job, k)[token] = sum;
  }
  if (job.coded->offset == OffsetType::kNone) return;
  for (std::int64_t begin = 0; begin < count; begin += group) {
    const std::int64_t n = smaller(count - begin, group);
    F sum = Vec::zero();
    for (std::int64_t i = 0; i < n; i += kLanes) {
      const int some = lanes_left(i, n);
      sum += takes_pairs(job) ? load_some(reinterpret_cast<const BFloat16*>(values) + begin + i, some)
                              : load_some(values + begin + i, some);
    }
    group_values(job, k + begin)[token] = -sum_lanes(sum);
  }
}

// Blocks [begin, end) of k, as multiply wants them: [blocks][tiles][depth of the block][tokens of the tile].
void prepare_activations(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t depth = job.padded;
  const std::int64_t most = job.block;
  const std::int64_t per_float = takes_bytes(job) ? 4 : takes_pairs(job) ? 2 : 1;
  float rows[Vec::kMaxHeight * kBlockDepth + kLanes];
  for (std::int64_t k = begin * most; k < end * most && k < depth; k += most) {
    const std::int64_t count = smaller(depth - k, most);
    float* to = job.activations + job.tokens * k / per_float;
    for (std::int64_t token = 0; token < job.tokens;) {
      const int height = Vec::tile_height(job.tokens - token, job.coded != nullptr);
      for (int m = 0; m < height; ++m) {
        read_activations(job, token + m, k, count, rows + m * kBlockDepth);
        sum_groups(job, token + m, k, count, rows + m * kBlockDepth);
      }
      with_height(height, [&]<int M>() {
        interleave<M>(reinterpret_cast<const std::int32_t*>(rows), count / per_float,
                      reinterpret_cast<std::int32_t*>(to));
      });
      token += height;
      to += height * count / per_float;
    }
  }
}

}  // namespace
}  // namespace quire::simd
