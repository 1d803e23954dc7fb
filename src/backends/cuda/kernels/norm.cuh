#pragma once

#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

namespace quire::cuda {

// What kernels that norm rows have in common: a block of threads a row.

constexpr unsigned kMaxNormThreads = 1024;

// Row: of the residual stream, or of what is normed as it is.
template <typename In, typename Out, typename Row = float>
struct NormArgs {
  Out* out;
  Row* residual;
  const In* x;          // added to the residual first; null: nothing is
  const float* weight;  // null: rows are copied as they are
  const float* bias;    // of LayerNorm
  std::int64_t out_stride, residual_stride, x_stride;
  int columns;
  float scale;  // of x
  float eps;
};

// The sum over the block, in every thread. To be followed by a barrier before the next.
__device__ inline float block_sum(float value) {
  __shared__ float partial[kMaxNormThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0U, value, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0F;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0U, sum, step);
  return sum;
}

template <int kWidth>
__device__ float sum_of(const Vec<float, kWidth>& values) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += values.values[i];
  return sum;
}

template <int kWidth>
__device__ float squares(const Vec<float, kWidth>& values, float center) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sum += (values.values[i] - center) * (values.values[i] - center);
  return sum;
}

// The weights at `column`; ones where there are none.
template <int kWidth>
__device__ Vec<float, kWidth> load_weight(const float* weight, int column) {
  if (weight != nullptr) return load_vec<kWidth>(weight + column);
  Vec<float, kWidth> ones;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) ones.values[i] = 1;
  return ones;
}

// By what RMSNorm and LayerNorm multiply a row of this mean square, or variance.
__device__ inline float inverse_deviation(const float* weight, float mean_square, float eps) {
  return weight == nullptr ? 1 : rsqrtf(mean_square + eps);
}

// What a row's values become once its sums are known.
template <bool kCentered>
struct Normed {
  float center;
  float inverse;

  template <typename Out, int kWidth>
  __device__ Vec<Out, kWidth> of(const Vec<float, kWidth>& values, const Vec<float, kWidth>& weight,
                                 const float* bias) const {
    Vec<Out, kWidth> normed;
    if constexpr (kCentered) {
      const auto shift = load_vec<kWidth>(bias);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const float value = (values.values[i] - center) * inverse * weight.values[i];
        normed.values[i] = narrow<Out>(value + shift.values[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kWidth; ++i)
        normed.values[i] = narrow<Out>(values.values[i] * inverse * weight.values[i]);
    }
    return normed;
  }
};

}  // namespace quire::cuda
