#pragma once

// Products of packed matrices: out [tokens, out] = x [tokens, k] · wᵀ.
//
// A tile of M tokens and NV vectors of rows stays in registers while k runs; every element is summed over k
// in order, in one lane, so its value does not depend on the tile. Between blocks of k the sums are stored
// and loaded, which changes nothing. For one token the weights are read once, front to back: their bytes are
// the limit. For many tokens arithmetic is.

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

// How a step of the sum reads weights: kDepth values of k for each row, of kBytes together; and kActivations
// floats of each token.
struct WeightsF32 {
  static constexpr int kDepth = 1, kBytes = 4, kActivations = 1;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* a, std::int64_t a_stride,
                                          const std::byte* b) {
    F w[NV];
    for (int v = 0; v < NV; ++v) w[v] = Vec::load(reinterpret_cast<const float*>(b) + v * kLanes);
    for (int m = 0; m < M; ++m) {
      const F x = Vec::set1(a[m * a_stride]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::fma(x, w[v], sums[m][v]);
    }
  }
};

struct WeightsF16 {
  static constexpr int kDepth = 1, kBytes = 2, kActivations = 1;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* a, std::int64_t a_stride,
                                          const std::byte* b) {
    F w[NV];
    for (int v = 0; v < NV; ++v) w[v] = Vec::load_as(reinterpret_cast<const Float16*>(b) + v * kLanes);
    for (int m = 0; m < M; ++m) {
      const F x = Vec::set1(a[m * a_stride]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::fma(x, w[v], sums[m][v]);
    }
  }
};

struct WeightsBF16 {
  static constexpr int kDepth = 2, kBytes = 4, kActivations = 2;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* a, std::int64_t a_stride,
                                          const std::byte* b) {
    F w[NV];
    for (int v = 0; v < NV; ++v) w[v] = Vec::even_bf16(b + v * kLanes * kBytes);
    for (int m = 0; m < M; ++m) {
      const F x = Vec::set1(a[m * a_stride]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::fma(x, w[v], sums[m][v]);
    }
    for (int v = 0; v < NV; ++v) w[v] = Vec::odd_bf16(b + v * kLanes * kBytes);
    for (int m = 0; m < M; ++m) {
      const F x = Vec::set1(a[m * a_stride + 1]);
      for (int v = 0; v < NV; ++v) sums[m][v] = Vec::fma(x, w[v], sums[m][v]);
    }
  }
};

#if defined(__AVX512BF16__)
// A pair of bfloat16 of x in each float of the activations.
struct WeightsBF16Pairs {
  static constexpr int kDepth = 2, kBytes = 4, kActivations = 1;
  template <int M, int NV>
  [[gnu::always_inline]] static void step(F (&sums)[M][NV], const float* a, std::int64_t a_stride,
                                          const std::byte* b) {
    __m512bh w[NV];
    for (int v = 0; v < NV; ++v) w[v] = (__m512bh)_mm512_loadu_si512(b + v * kLanes * kBytes);
    for (int m = 0; m < M; ++m) {
      const auto x = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const std::int32_t*>(a)[m * a_stride]);
      for (int v = 0; v < NV; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], x, w[v]);
    }
  }
};
#endif

// Two matrices to multiply, and how far apart their rows are.
struct Operands {
  float* sums;
  std::int64_t sums_stride;  // floats from token to token
  const float* a;
  std::int64_t a_stride;  // floats from token to token
  const std::byte* b;
  std::int64_t b_stride;  // bytes from step to step
  std::int64_t steps;
  const std::byte* ahead = nullptr;  // what to fetch meanwhile, as many bytes as b has
};

template <class Weights, int M, int NV, bool kFetch>
void multiply_tile(const Operands& o) {
  F sums[M][NV];
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) sums[m][v] = Vec::load(o.sums + m * o.sums_stride + v * kLanes);
  }
  const float* a = o.a;
  const std::byte* b = o.b;
  const std::byte* ahead = o.ahead;
  for (std::int64_t s = 0; s < o.steps; ++s) {
    if constexpr (kFetch) {
      constexpr int kBytes = NV * kLanes * Weights::kBytes;
      for (int i = 0; i < kBytes; i += 64)
        _mm_prefetch(reinterpret_cast<const char*>(ahead + i), _MM_HINT_T0);
      ahead += kBytes;
    }
    Weights::template step<M, NV>(sums, a, o.a_stride, b);
    a += Weights::kActivations;
    b += o.b_stride;
  }
  for (int m = 0; m < M; ++m) {
    for (int v = 0; v < NV; ++v) Vec::store(o.sums + m * o.sums_stride + v * kLanes, sums[m][v]);
  }
}

constexpr int kTileTokens = 6;

template <class Weights, int NV, bool kFetch, int M>
[[gnu::always_inline]] inline void multiply_tokens(int tokens, const Operands& o) {
  if constexpr (M > 0) {
    if (tokens == M) {
      if constexpr (M * NV <= Vec::kMaxAccumulators) multiply_tile<Weights, M, NV, kFetch>(o);
    } else {
      multiply_tokens<Weights, NV, kFetch, M - 1>(tokens, o);
    }
  }
}

// Rows of any number of tokens, in tiles of equal height, at most kHeight.
template <class Weights, int NV, bool kFetch, int kHeight>
void multiply_rows(std::int64_t tokens, const Operands& o) {
  const std::int64_t tiles = (tokens + kHeight - 1) / kHeight;
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int64_t begin = tokens * t / tiles;
    Operands tile = o;
    tile.sums += begin * o.sums_stride;
    tile.a += begin * o.a_stride;
    const auto height = static_cast<int>(tokens * (t + 1) / tiles - begin);
    if (kFetch && t == 0) {
      multiply_tokens<Weights, NV, kFetch, kHeight>(height, tile);
    } else {
      multiply_tokens<Weights, NV, false, kHeight>(height, tile);
    }
  }
}

template <class Weights, int NV, bool kFetch, int kHeight = kTileTokens>
[[gnu::always_inline]] inline std::int64_t multiply_columns(std::int64_t tokens, std::int64_t column,
                                                            std::int64_t columns, const Operands& o) {
  for (; column + NV * kLanes <= columns; column += NV * kLanes) {
    Operands part = o;
    part.sums += column;
    part.b += column * Weights::kBytes;
    if constexpr (kFetch) part.ahead += column * Weights::kBytes * o.steps;
    multiply_rows<Weights, NV, kFetch, kHeight>(tokens, part);
  }
  return column;
}

// sums [tokens][columns] += a · b, columns a multiple of kPanelStep.
template <class Weights, bool kFetch = false>
void multiply(std::int64_t tokens, std::int64_t columns, const Operands& o) {
  if constexpr (kFetch && Vec::kTallTile > 0) {
    if (tokens > kTileTokens && tokens <= Vec::kTallTile) {  // one tile, for the sake of reading weights once
      const auto column =
          multiply_columns<Weights, Vec::kTallVectors, true, Vec::kTallTile>(tokens, 0, columns, o);
      multiply_columns<Weights, kPanelStep / kLanes, true, Vec::kTallTile>(tokens, column, columns, o);
      return;
    }
  }
  const std::int64_t tiles = (tokens + kTileTokens - 1) / kTileTokens;
  const std::int64_t tallest = (tokens + tiles - 1) / tiles;
  std::int64_t column = 0;
  if (tallest == 1) {
    column = multiply_columns<Weights, Vec::vectors_for(1), kFetch>(tokens, column, columns, o);
  } else if (tallest <= 3) {
    column = multiply_columns<Weights, Vec::vectors_for(3), kFetch>(tokens, column, columns, o);
  } else {
    column = multiply_columns<Weights, Vec::vectors_for(kTileTokens), kFetch>(tokens, column, columns, o);
  }
  multiply_columns<Weights, kPanelStep / kLanes, kFetch>(tokens, column, columns, o);
}

// Rows a widened block keeps side by side: those of one tile.
constexpr int kWideVectors = Vec::vectors_for(kTileTokens);

// A block of a panel as float32, [rows / width][depth][width].
void widen(DType dtype, const std::byte* from, std::int64_t rows, std::int64_t depth, std::int64_t width,
           float* to) {
  for (std::int64_t k = 0; k < depth; ++k) {
    for (std::int64_t row = 0; row < rows; row += kLanes) {
      float* out = to + (row / width * depth + k) * width + row % width;
      if (dtype == DType::kBF16) {
        const std::byte* pairs = from + (k / 2 * rows + row) * 4;
        Vec::store(out, k % 2 == 0 ? Vec::even_bf16(pairs) : Vec::odd_bf16(pairs));
      } else {
        Vec::store(out, Vec::load_as(reinterpret_cast<const Float16*>(from) + k * rows + row));
      }
    }
  }
}

void store_sums(const LinearJob& job, std::int64_t first_row, const float* sums) {
  const std::int64_t left = job.out_features - first_row;
  const std::int64_t rows = left < kPanel ? left : kPanel;
  dispatch(job.out_dtype, [&]<typename T>() {
    for (std::int64_t t = 0; t < job.tokens; ++t) {
      T* out = static_cast<T*>(job.out) + t * job.out_stride + first_row;
      for (std::int64_t i = 0; i < rows; i += kLanes) {
        const int count = lanes_left(i, rows);
        F sum = Vec::load(sums + t * kPanel + i);
        if (job.bias != nullptr) sum = Vec::add(sum, load_some(job.bias + first_row + i, count));
        store_some(out + i, sum, count);
      }
    }
  });
}

template <class Weights, bool kWiden>
void multiply_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int64_t depth = round_up(job.in_features, 2);
  const std::int64_t stride = activation_stride(job.in_features);
  constexpr std::int64_t kElement = Weights::kBytes / Weights::kDepth;
  const std::int64_t block_depth = job.tokens < kWideTokens ? kNarrowDepth : kBlockDepth;
  float* block = scratch + kMaxPassTokens * kPanel;
  for (std::int64_t panel = begin; panel < end; ++panel) {
    const std::int64_t first_row = panel * kPanel;
    const std::int64_t left = round_up(job.out_features - first_row, kPanelStep);
    const std::int64_t rows = left < kPanel ? left : kPanel;
    const std::byte* weights = job.weights + first_row * depth * kElement;
    __builtin_memset(scratch, 0, static_cast<std::size_t>(job.tokens * kPanel) * sizeof(float));
    for (std::int64_t k = 0; k < depth; k += block_depth) {
      const std::int64_t count = depth - k < block_depth ? depth - k : block_depth;
      Operands o{scratch,
                 kPanel,
                 job.activations + k * Weights::kActivations / Weights::kDepth,
                 stride,
                 weights + k * rows * kElement,
                 rows * Weights::kBytes,
                 count / Weights::kDepth};
      if constexpr (kWiden) {
        const std::int64_t width = rows == kPanel ? kWideVectors * kLanes : kPanelStep;
        widen(job.dtype, o.b, rows, count, width, block);
        o.b_stride = width * static_cast<std::int64_t>(sizeof(float));
        o.steps = count;
        for (std::int64_t row = 0; row < rows; row += width) {
          o.b = reinterpret_cast<const std::byte*>(block + row * count);
          o.sums = scratch + row;
          multiply<WeightsF32>(job.tokens, width, o);
        }
      } else {
        o.ahead = o.b + rows * block_depth * kElement;
        multiply<Weights, true>(job.tokens, rows, o);
      }
    }
    store_sums(job, first_row, scratch);
  }
}

[[gnu::always_inline]] inline bool takes_pairs([[maybe_unused]] const LinearJob& job) {
#if defined(__AVX512BF16__)
  return job.dtype == DType::kBF16 && job.x_dtype == DType::kBF16;
#else
  return false;
#endif
}

void prepare_activations(const LinearJob& job, std::int64_t begin, std::int64_t end) {
  const std::int64_t stride = activation_stride(job.in_features);
  for (std::int64_t t = begin; t < end; ++t) {
    float* to = job.activations + t * stride;
    if (takes_pairs(job)) {
      auto* pairs = reinterpret_cast<BFloat16*>(to);
      __builtin_memcpy(pairs, static_cast<const BFloat16*>(job.x) + t * job.x_stride,
                       static_cast<std::size_t>(job.in_features) * sizeof(BFloat16));
      if (job.in_features % 2 != 0) pairs[job.in_features] = {0};
      continue;
    }
    dispatch(job.x_dtype, [&]<typename T>() {
      const T* from = static_cast<const T*>(job.x) + t * job.x_stride;
      for (std::int64_t i = 0; i < job.in_features; i += kLanes) {
        Vec::store(to + i, load_some(from + i, lanes_left(i, job.in_features)));
      }
    });
  }
}

void linear_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  const bool wide = job.tokens >= kWideTokens;
#if defined(__AVX512BF16__)
  if (takes_pairs(job)) {
    multiply_panels<WeightsBF16Pairs, false>(job, begin, end, scratch);
    return;
  }
#endif
  if (job.dtype == DType::kBF16) {
    wide ? multiply_panels<WeightsBF16, true>(job, begin, end, scratch)
         : multiply_panels<WeightsBF16, false>(job, begin, end, scratch);
  } else if (job.dtype == DType::kF16) {
    wide ? multiply_panels<WeightsF16, true>(job, begin, end, scratch)
         : multiply_panels<WeightsF16, false>(job, begin, end, scratch);
  } else {
    multiply_panels<WeightsF32, false>(job, begin, end, scratch);
  }
}

}  // namespace
}  // namespace quire::simd
