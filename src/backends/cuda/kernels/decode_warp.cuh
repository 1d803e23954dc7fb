#pragma once

#include "backends/cuda/kernels/decode_loader.cuh"
#include "backends/cuda/kernels/product_tile.cuh"

// The computing half of paged decode attention: a warp, over its tiles of a piece, and the sum of what warps
// found.
namespace quire::cuda {

__device__ inline float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <typename T>
__device__ inline float2 widen_pair(std::uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(pair));
  } else {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  }
}

// One warp's attention over its tiles of a piece. T: of queries; E: elements of the cache. With g = lane / 4
// and t = lane % 4 a lane holds the weights of tokens g and g + 8, and of the sums two dimensions of each 16
// (sum_dim); both of query heads 2t and 2t + 1 of each tile of 8 heads.
//
// Codes are multiplied as float16, which holds each exactly, and no scale is multiplied with them: a key's
// goes to its score, and a value's, as a power of 2, to the score of its weight, so that weights stay near 1
// whatever the scales are. Queries become float16 relative to their head's largest power of 2.
template <typename T, typename E, int kDim, int kHeadTiles>
class WarpAttention {
 public:
  using Sizes = Ring<E, kDim, kHeadTiles>;
  using Operand = std::conditional_t<kIsCode<E>, __half, T>;
  static constexpr int kSteps = kDim / 16;
  static constexpr int kAtOnce = kIsCode<E> ? 2 : 1;  // steps that a matrix load brings

  __device__ explicit WarpAttention(unsigned lane)
      : lane_(lane),
        key_row_(lane % 16 * Sizes::kRowBytes),
        value_row_(Sizes::kTileBytes + (lane % 8 + lane / 16 * 8) * Sizes::kRowBytes),
        key_chunk_((lane / 16 ^ Sizes::TileRows::exchange(lane)) * 16),
        value_chunk_((lane / 8 % 2 ^ Sizes::TileRows::exchange(lane)) * 16) {}

  // Begins a piece whose queries [8 * kHeadTiles, kDim] are at a shared address.
  __device__ void begin(std::uint32_t queries) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
      if constexpr (kIsCode<E>) {
        load_scaled_queries(queries, n);
      } else {
        load_queries(queries, n);
      }
#pragma unroll
      for (int m = 0; m < kSteps; ++m) {
#pragma unroll
        for (float& sum : sums_[n][m]) sum = 0;
      }
      top_[n][0] = top_[n][1] = -INFINITY;
      total_[n][0] = total_[n][1] = 0;
    }
  }

  // Of the 16 tokens at a stage's shared address, `hidden` lie before the window, and so many, at least one,
  // are seen.
  __device__ void add_tile(std::uint32_t stage, unsigned hidden, unsigned seen, const ScoreArgs& score_args) {
    float even[kHeadTiles][4] = {}, odd[kHeadTiles][4] = {};  // scores in two chains, which hide latency
#pragma unroll
    for (int k = 0; k < kSteps; k += kAtOnce) {
      std::uint32_t keys[kAtOnce][4];
      load_keys(stage, k, keys);
#pragma unroll
      for (int j = 0; j < kAtOnce && k + j < kSteps; ++j) {
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n) {
          multiply_add<Operand>((k + j) % 2 == 0 ? even[n] : odd[n], keys[j], queries_[n][k + j][0],
                                queries_[n][k + j][1]);
        }
      }
    }
    float key_scales[2], value_exponents[2] = {};  // of codes, of the lane's two tokens
    if constexpr (kIsCode<E>) {
#pragma unroll
      for (unsigned i = 0; i < 2; ++i) {
        const std::uint32_t at = stage + Sizes::kScales + (lane_ / 4 + i * 8) * sizeof(float);
        key_scales[i] = load_shared_float(at);
        value_exponents[i] = log2_approx(load_shared_float(at + kTileTokens * sizeof(float)));
      }
    }
    std::uint32_t weights[kHeadTiles][2];
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        even[n][i] += odd[n][i];
        if constexpr (kIsCode<E>) even[n][i] *= key_scales[i / 2] * query_scales_[n][i % 2];
      }
      if (score_args.inner != 0) {
#pragma unroll
        for (float& score : even[n]) score = tanh_approx(score * score_args.inner);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_seen = lane_ / 4 + i / 2 * 8 - hidden < seen;
        even[n][i] = is_seen ? even[n][i] * score_args.outer : -INFINITY;
        if (!is_seen) value_exponents[i / 2] = 0;  // which may have been anything
      }
      weigh(n, even[n], value_exponents, weights[n]);
    }
#pragma unroll
    for (int m = 0; m < kSteps; m += kAtOnce) {
      std::uint32_t values[kAtOnce][4];
      load_values(stage, m, values);
#pragma unroll
      for (int j = 0; j < kAtOnce && m + j < kSteps; ++j) {
#pragma unroll
        for (int n = 0; n < kHeadTiles; ++n)
          multiply_add<Operand>(sums_[n][m + j], values[j], weights[n][0], weights[n][1]);
      }
    }
  }

  // Leaves in shared memory sums [num_heads, kSumStride] and, a head, maximum and total.
  __device__ void store(float* sums, float2* weights, int num_heads) {
#pragma unroll
    for (int n = 0; n < kHeadTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        total_[n][i] = sum_of_lanes<4, 16>(total_[n][i]);
        const unsigned head = n * 8 + lane_ % 4 * 2 + i;
        if (head >= static_cast<unsigned>(num_heads)) continue;
        if (lane_ < 4) weights[head] = {top_[n][i], total_[n][i]};
        float* row = sums + head * Sizes::kSumStride;
#pragma unroll
        for (int m = 0; m < kSteps; ++m) {
          row[m * 16 + sum_dim(0)] = sums_[n][m][i];
          row[m * 16 + sum_dim(1)] = sums_[n][m][i + 2];
        }
      }
    }
  }

 private:
  __device__ static float load_shared_float(std::uint32_t from) {
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(from) : "memory");
    return value;
  }

  // Of the 16 of a step, the lane's i-th dimension: a word of transposed codes has two neighbours.
  __device__ unsigned sum_dim(unsigned i) const { return kIsCode<E> ? lane_ / 4 * 2 + i : lane_ / 4 + i * 8; }

  __device__ void load_queries(std::uint32_t queries, int n) {
#pragma unroll
    for (int k = 0; k < kSteps; k += 2) {
      const bool both = k + 1 < kSteps;
      std::uint32_t matrices[4];
      const unsigned chunk = both ? lane_ / 8 : lane_ / 8 % 2;
      load_matrices(matrices, queries + Sizes::QueryRows::offset(n * 8 + lane_ % 8, 2U * k ^ chunk));
      queries_[n][k][0] = matrices[0];
      queries_[n][k][1] = matrices[1];
      if (both) {
        queries_[n][k + 1][0] = matrices[2];
        queries_[n][k + 1][1] = matrices[3];
      }
    }
  }

  // Dimensions 4t to 4t + 3 of each step, as load_keys has them.
  __device__ void load_scaled_queries(std::uint32_t queries, int n) {
    float largest = 0;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      std::uint32_t(&pairs)[2] = queries_[n][k];
      const std::uint32_t chunk =
          queries + Sizes::QueryRows::offset(n * 8 + lane_ / 4, 2U * k + lane_ % 4 / 2);
      asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                   : "=r"(pairs[0]), "=r"(pairs[1])
                   : "r"(chunk + lane_ % 2 * 8)
                   : "memory");
#pragma unroll
      for (const std::uint32_t pair : pairs) {
        const float2 x = widen_pair<T>(pair);
        largest = fmaxf(largest, fmaxf(fabsf(x.x), fabsf(x.y)));
      }
    }
    const unsigned power = __float_as_uint(max_of_lanes<1, 2>(largest)) & 0x7F800000U;  // of 2
    const float inverse = __uint_as_float((254U << 23) - power);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (std::uint32_t& pair : queries_[n][k]) {
        const float2 x = widen_pair<T>(pair);
        pair = pack(x.x * inverse, x.y * inverse, __half());
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
      query_scales_[n][i] = __shfl_sync(~0U, __uint_as_float(power), (lane_ % 4 * 2 + i) * 4);
  }

  // Keys of a step or two as left operands.
  __device__ void load_keys(std::uint32_t stage, int k, std::uint32_t (&keys)[kAtOnce][4]) const {
    const std::uint32_t from = stage + key_row_ + (key_chunk_ ^ k / kAtOnce * 32U);
    if constexpr (kIsCode<E>) {
      std::uint32_t matrices[4];
      load_matrices(matrices, from);
#pragma unroll
      for (int i = 0; i < 4; ++i)
        widen_codes<E::kKind>(matrices[i], keys[i / 2][i % 2], keys[i / 2][i % 2 + 2]);
    } else {
      load_matrices(keys[0], from);
    }
  }

  // Values likewise, transposed. A word of codes has dimensions 2g and 2g + 1 of tokens 2t and 2t + 1.
  __device__ void load_values(std::uint32_t stage, int m, std::uint32_t (&values)[kAtOnce][4]) const {
    const std::uint32_t from = stage + value_row_ + (value_chunk_ ^ m / kAtOnce * 32U);
    if constexpr (kIsCode<E>) {
      std::uint32_t matrices[4];
      load_matrices_transposed(matrices, from);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t by_dimension = __byte_perm(matrices[i], 0, 0x3120);
        widen_codes<E::kKind>(by_dimension, values[i % 2][i / 2 * 2], values[i % 2][i / 2 * 2 + 1]);
      }
    } else {
      load_matrices_transposed(values[0], from);
    }
  }

  // Scores to weights relative to the largest score so far, and the sums to that same scale. exponents: of
  // two, what the tokens' values are multiplied with.
  __device__ void weigh(int n, float (&scores)[4], const float (&exponents)[2], std::uint32_t (&weights)[2]) {
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float first = kIsCode<E> ? scores[i] + exponents[0] : scores[i];
      const float second = kIsCode<E> ? scores[i + 2] + exponents[1] : scores[i + 2];
      const float largest = fmaxf(max_of_lanes<4, 16>(fmaxf(first, second)), top_[n][i]);
      shrink[i] = exp2_approx(top_[n][i] - largest);
      top_[n][i] = largest;
      const float first_weight = exp2_approx(scores[i] - largest);
      const float second_weight = exp2_approx(scores[i + 2] - largest);
      total_[n][i] = total_[n][i] * shrink[i] + first_weight + second_weight;
      scores[i] = kIsCode<E> ? exp2_approx(first - largest) : first_weight;
      scores[i + 2] = kIsCode<E> ? exp2_approx(second - largest) : second_weight;
    }
    weights[0] = transpose(pack(scores[0], scores[1], Operand()));
    weights[1] = transpose(pack(scores[2], scores[3], Operand()));
#pragma unroll
    for (int m = 0; m < kSteps; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums_[n][m][i] *= shrink[i % 2];
    }
  }

  const unsigned lane_;
  const std::uint32_t key_row_, value_row_;      // bytes in a stage before the row that the lane addresses,
  const std::uint32_t key_chunk_, value_chunk_;  // and in the row before its first chunk
  std::uint32_t queries_[kHeadTiles][kSteps][2];
  float query_scales_[kHeadTiles][2];  // of codes
  float sums_[kHeadTiles][kSteps][4];
  float top_[kHeadTiles][2];    // largest score so far, a value's exponent included
  float total_[kHeadTiles][2];  // of the weights of this lane's tokens
};

// Four dimensions of one head, added up from parts that are each relative to their own maximum.
class HeadSum {
 public:
  // weights(i) is {maximum, total} of part i, and values(i) its sums; kAtOnce parts are read at once. A part
  // of maximum -inf is empty and its sums are 0; the first kAtOnce are not all empty.
  template <int kAtOnce, typename Weights, typename Values>
  __device__ void add(int count, Weights&& weights, Values&& values) {
    for (int base = 0; base < count; base += kAtOnce) {
      float2 weight[kAtOnce];
      float4 value[kAtOnce];
      float largest = top_;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        weight[i] = weights(min(base + i, count - 1));
        value[i] = values(min(base + i, count - 1));
        if (base + i >= count) weight[i].x = -INFINITY;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) largest = fmaxf(largest, weight[i].x);
      scale(exp2_approx(top_ - largest));
      top_ = largest;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float factor = exp2_approx(weight[i].x - largest);
        total_ += weight[i].y * factor;
        sums_.x += value[i].x * factor;
        sums_.y += value[i].y * factor;
        sums_.z += value[i].z * factor;
        sums_.w += value[i].w * factor;
      }
    }
  }

  __device__ float2 weight() const { return {top_, total_}; }
  __device__ float4 sums() const { return sums_; }

  // other: the weight of what has no value.
  template <typename T>
  __device__ void write(T* out, float other) {
    scale(__fdividef(1.0F, total_ + other));
    *reinterpret_cast<uint2*>(out) = {pack(sums_.x, sums_.y, T()), pack(sums_.z, sums_.w, T())};
  }

 private:
  __device__ void scale(float factor) {
    total_ *= factor;
    sums_.x *= factor;
    sums_.y *= factor;
    sums_.z *= factor;
    sums_.w *= factor;
  }

  float top_ = -INFINITY;
  float total_ = 0;
  float4 sums_ = {0, 0, 0, 0};
};

}  // namespace quire::cuda
