#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/cuda/kernels/activation.cuh"
#include "backends/cuda/kernels/experts.h"
#include "backends/cuda/kernels/vec.cuh"
#include "ops/experts.h"

namespace quire::cuda {

// The routing of a call's tokens as kernels see it.
struct RoutingArgs {
  RoutingArgs() = default;
  explicit RoutingArgs(const ExpertRouting& routing)
      : experts(routing.experts.data_as<const int>()),
        weights(routing.weights.data_as<const float>()),
        experts_stride(routing.experts.stride(0)),
        weights_stride(routing.weights.stride(0)),
        top_k(static_cast<int>(routing.experts.dim(1))),
        pairs(static_cast<int>(routing.experts.numel())) {}

  // Of a pair: a token's choices are side by side.
  __device__ int expert(int pair) const { return experts[pair / top_k * experts_stride + pair % top_k]; }

  const int* experts = nullptr;
  const float* weights = nullptr;
  std::int64_t experts_stride = 0, weights_stride = 0;
  int top_k = 0;
  int pairs = 0;
};

// One of a token's experts.
struct Choice {
  int expert;
  int pair;
  float weight;
};

// A token's choices in order of their expert's number: lane i of a warp gets the i-th. That is the order in
// which results are summed.
__device__ inline Choice sorted_choice(const RoutingArgs& routing, int token) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const bool inside = lane < routing.top_k;
  const int expert = inside ? routing.experts[token * routing.experts_stride + lane] : 0;
  const float weight = inside ? routing.weights[token * routing.weights_stride + lane] : 0.0F;
  int place = 0;
  for (int other = 0; other < routing.top_k; ++other) {
    const int theirs = __shfl_sync(~0U, expert, other);
    place += theirs < expert || (theirs == expert && other < lane) ? 1 : 0;
  }
  int source = 0;
  for (int other = 0; other < routing.top_k; ++other)
    if (__shfl_sync(~0U, place, other) == lane) source = other;
  return {__shfl_sync(~0U, expert, source), token * routing.top_k + source, __shfl_sync(~0U, weight, source)};
}

// What becomes of sums of a gate and of up, in a column of an expert. NaN stays.
__device__ inline float gated(const ExpertGate& by, float gate, float up, int expert, int column) {
  if (by.bias != nullptr) {
    const float* bias = by.bias + expert * by.expert_stride + column;
    gate += bias[0];
    up += bias[by.up_stride];
  }
  gate = gate > by.limit ? by.limit : gate;
  up = up > by.limit ? by.limit : up < -by.limit ? -by.limit : up;
  return activated(gate, {by.linear, by.cubic}) * (up + by.up_offset);
}

// The biases of a token's experts in a column of out, [num_experts, columns]; null: there are none.
__device__ inline float bias_sum(const RoutingArgs& routing, int token, const float* bias, int columns,
                                 int column) {
  float sum = 0;
  for (int i = 0; bias != nullptr && i < routing.top_k; ++i) {
    const std::int64_t expert = routing.experts[token * routing.experts_stride + i];
    sum = fmaf(routing.weights[token * routing.weights_stride + i], bias[expert * columns + column], sum);
  }
  return sum;
}

// Neighbours as they are read: 16 bytes stay words until they are used, or else each value takes a register.
template <int kWidth, typename T>
using Raw = std::conditional_t<sizeof(T) * kWidth == 16, uint4, Vec<T, kWidth>>;

template <int kWidth, typename T>
__device__ inline Raw<kWidth, T> load_raw(const T* from) {
  return *reinterpret_cast<const Raw<kWidth, T>*>(from);
}

template <typename T>
__device__ inline float add_product(unsigned a, unsigned b, float sum) {
  if constexpr (std::is_same_v<T, float>) {
    return fmaf(__uint_as_float(a), __uint_as_float(b), sum);
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    sum = fmaf(__uint_as_float(a << 16), __uint_as_float(b << 16), sum);
    return fmaf(__uint_as_float(a & 0xFFFF0000U), __uint_as_float(b & 0xFFFF0000U), sum);
  } else {
    const float2 wide_a = __half22float2(reinterpret_cast<const __half2&>(a));
    const float2 wide_b = __half22float2(reinterpret_cast<const __half2&>(b));
    return fmaf(wide_a.y, wide_b.y, fmaf(wide_a.x, wide_b.x, sum));
  }
}
template <typename T>
__device__ inline float dot(const uint4& a, const uint4& b, float sum) {
  sum = add_product<T>(a.x, b.x, sum);
  sum = add_product<T>(a.y, b.y, sum);
  sum = add_product<T>(a.z, b.z, sum);
  return add_product<T>(a.w, b.w, sum);
}
template <typename T>
__device__ inline float dot(const Vec<T, 1>& a, const Vec<T, 1>& b, float sum) {
  return fmaf(widen(a.values[0]), widen(b.values[0]), sum);
}

}  // namespace quire::cuda
