#pragma once

#include "backends/cuda/kernels/launch.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/ops.h"

namespace quire::cuda {

// What kernels that norm rows have in common: a block of threads a row.

constexpr unsigned kMaxNormThreads = 1024;

enum class NormForm { kCopy, kRms, kLayer };

// Calls f.template operator()<kForm>() with the form of a norm.
template <typename F>
void dispatch_form(const NormParams& params, F&& f) {
  const NormForm form = !params.weight.defined() ? NormForm::kCopy
                        : params.bias.defined()  ? NormForm::kLayer
                                                 : NormForm::kRms;
  dispatch<NormForm::kCopy, NormForm::kRms, NormForm::kLayer>(form, f);
}

// Row: of the residual stream, or of what is normed as it is.
template <typename In, typename Out, typename Row = float>
struct NormArgs {
  RowsOf<Out> out;
  RowsOf<Row> residual;
  RowsOf<const In> x;   // added to the residual first; null: nothing is
  const float* weight;  // of RMSNorm and LayerNorm
  const float* bias;    // of LayerNorm
  int columns;
  float scale;      // of x
  float sum_scale;  // of the residual with it
  float eps;
};

// x may be undefined: nothing is added.
template <typename In, typename Out, typename Row = float>
NormArgs<In, Out, Row> norm_args(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                                 const NormParams& params) {
  return {.out = out,
          .residual = residual,
          .x = x,
          .weight = params.weight.data_as<const float>(),
          .bias = params.bias.data_as<const float>(),
          .columns = static_cast<int>(out.dim(1)),
          .scale = scale,
          .sum_scale = params.sum_scale,
          .eps = params.eps};
}

// The sum over the block, in every thread. To be followed by a barrier before the next.
__device__ inline float block_sum(float value) {
  __shared__ float partial[kMaxNormThreads / 32];
  value = sum_of_lanes<16, 1>(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  return sum_of_lanes<16, 1>(threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0F);
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

// What a row's values become once its sums are known.
template <NormForm kForm>
struct Normed {
  float center;
  float inverse;

  template <typename Out, int kWidth>
  __device__ Vec<Out, kWidth> of(const Vec<float, kWidth>& values, const Vec<float, kWidth>& weight,
                                 const float* bias) const {
    Vec<Out, kWidth> normed;
    if constexpr (kForm == NormForm::kCopy) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) normed.values[i] = narrow<Out>(values.values[i]);
    } else if constexpr (kForm == NormForm::kLayer) {
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
