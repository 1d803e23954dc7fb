#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "base/dtype.h"
#include "base/tensor.h"

namespace quire::cuda {

// The element types of base/dtype.h on the device, and several of them in one memory access.

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(BFloat16 value) { return __uint_as_float(std::uint32_t{value.bits} << 16); }
__device__ inline float widen(Float16 value) { return __half2float(__ushort_as_half(value.bits)); }

template <typename T>
__device__ T narrow(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {__half_as_ushort(__float2half_rn(value))};
  } else {
    return value;
  }
}

// 2^x, to 2^-22 of itself.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <int kFirst, int kLast>
constexpr int kNextLanes = kFirst < kLast ? 2 * kFirst : kFirst / 2;

// x of the lanes that are reached by steps from kFirst to kLast, doubled or halved each time: added up in
// pairs in that order, or the highest.
template <int kFirst, int kLast>
__device__ float sum_of_lanes(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(~0U, x, kFirst));
  if constexpr (kFirst != kLast) x = sum_of_lanes<kNextLanes<kFirst, kLast>, kLast>(x);
  return x;
}
template <int kFirst, int kLast>
__device__ float max_of_lanes(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, kFirst));
  if constexpr (kFirst != kLast) x = max_of_lanes<kNextLanes<kFirst, kLast>, kLast>(x);
  return x;
}

// kWidth neighbours, moved at once; the address is a multiple of their size.
template <typename T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vec {
  T values[kWidth];
};

template <int kWidth, typename T>
__device__ inline Vec<T, kWidth> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, kWidth>*>(from);
}

template <int kWidth, typename T>
__device__ inline void store_vec(T* to, const Vec<T, kWidth>& values) {
  *reinterpret_cast<Vec<T, kWidth>*>(to) = values;
}

// kWidth neighbours in float32.
template <int kWidth, typename T>
__device__ inline Vec<float, kWidth> load_wide(const T* from) {
  const auto raw = load_vec<kWidth>(from);
  Vec<float, kWidth> values;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) values.values[i] = widen(raw.values[i]);
  return values;
}

// 16 bytes that are read once, and so need no place in L1.
__device__ inline uint4 load_once(const void* from) {
  uint4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

// Unsigned integers in the order of the floats; NaN (the one that max.NaN.f32 gives) is above all. 0 is
// below.
__device__ inline unsigned ordered(float value) {
  const unsigned bits = __float_as_uint(value + 0.0F);  // -0 becomes 0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float from_ordered(unsigned order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order & 0x7FFFFFFFU : ~order);
}

// Whether every row of `tensor`, if there is one, can be read in pieces of `width` elements.
inline bool splits_into(const Tensor& tensor, int width) {
  if (!tensor.defined()) return true;
  bool fits = reinterpret_cast<std::uintptr_t>(tensor.data()) %
                  (static_cast<std::size_t>(width) * size_of(tensor.dtype())) ==
              0;
  for (int i = 0; i + 1 < tensor.num_dims(); ++i) fits = fits && tensor.stride(i) % width == 0;
  return fits && tensor.dim(tensor.num_dims() - 1) % width == 0;
}

// Calls f.template operator()<kWidth>() with the widest access that all rows allow: kWide elements, or 1.
template <int kWide, typename F>
void dispatch_width(std::initializer_list<Tensor> tensors, F&& f) {
  const bool wide = std::ranges::all_of(tensors, [](const Tensor& rows) { return splits_into(rows, kWide); });
  wide ? f.template operator()<kWide>() : f.template operator()<1>();
}

// A tensor along its first dimension, as kernels take it; null where there is none.
template <typename T>
struct RowsOf {
  T* data;
  std::int64_t stride;  // elements from a row to the next

  RowsOf(const Tensor& tensor) : data(tensor.data_as<T>()), stride(tensor.stride(0)) {}
  __device__ T* operator[](std::int64_t row) const { return data + row * stride; }
};

}  // namespace quire::cuda
