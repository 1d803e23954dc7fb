#pragma once

#include <cuda_fp8.h>

#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/vec.cuh"
#include "backends/cuda/kernels/w8a8.h"

// Codes of 8 bits, and how activations become them.
namespace quire::cuda {

struct E4m3Codes {
  using Sum = float;
  static constexpr float kMost = 448;
  static constexpr int kInputBytes = 2;  // of a value of x beside a product: a float16, which every code is

  __device__ static float value(std::uint8_t code) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
  }
  __device__ static std::uint16_t encode(float first, float second) {
    return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
  }
  // 8 codes beside a product.
  __device__ static void store_input(std::uint8_t* to, uint2 codes) {
    const uint2 low = halves(codes.x), high = halves(codes.y);
    *reinterpret_cast<uint4*>(to) = make_uint4(low.x, low.y, high.x, high.y);
  }
  // sums [16, 8] += a [16, 64] · bᵀ, b [8, 64], where a lane holds 16 neighbours of rows g and g + 8 of a and
  // of row g of b (multiply_add); in two chains of products.
  __device__ static void multiply(float (&sums)[2][4], const uint4& low, const uint4& high,
                                  const uint4 (&b)[kInputBytes]) {
    multiply_word(sums[0], low.x, high.x, b[0].x, b[0].y);
    multiply_word(sums[1], low.y, high.y, b[0].z, b[0].w);
    multiply_word(sums[0], low.z, high.z, b[1].x, b[1].y);
    multiply_word(sums[1], low.w, high.w, b[1].z, b[1].w);
  }

 private:
  __device__ static uint2 halves(std::uint32_t codes) {
    uint2 pairs;
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\n"
        "cvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
        : "=r"(pairs.x), "=r"(pairs.y)
        : "r"(codes));
#else
    const auto pair = [](std::uint32_t two) {
      const __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(two), __NV_E4M3);
      return std::uint32_t{raw.x} | std::uint32_t{raw.y} << 16;
    };
    pairs = make_uint2(pair(codes), pair(codes >> 16));
#endif
    return pairs;
  }
  __device__ static void multiply_word(float (&sums)[4], std::uint32_t low, std::uint32_t high,
                                       std::uint32_t b0, std::uint32_t b1) {
    const uint2 first = halves(low), second = halves(high);
    multiply_add<__half>(sums, {first.x, second.x, first.y, second.y}, b0, b1);
  }
};

struct Int8Codes {
  using Sum = int;
  static constexpr float kMost = 127;
  static constexpr int kInputBytes = 1;

  __device__ static int value(std::uint8_t code) { return static_cast<std::int8_t>(code); }
  __device__ static std::uint16_t encode(float first, float second) {
    return static_cast<std::uint16_t>(code(first) | code(second) << 8);
  }
  __device__ static void store_input(std::uint8_t* to, uint2 codes) { *reinterpret_cast<uint2*>(to) = codes; }
  __device__ static void multiply(int (&sums)[2][4], const uint4& low, const uint4& high,
                                  const uint4 (&b)[kInputBytes]) {
    multiply_add_int8(sums[0], {low.x, high.x, low.y, high.y}, b[0].x, b[0].y);
    multiply_add_int8(sums[1], {low.z, high.z, low.w, high.w}, b[0].z, b[0].w);
  }

 private:
  __device__ static int code(float value) {
    return __float2int_rn(fminf(fmaxf(value, -kMost), kMost)) & 0xFF;
  }
};

// A thread's piece of a row of x.
constexpr int kPiece = 8;

template <typename T>
struct InputPiece {
  Vec<T, kPiece> values{};

  // From column on; zeros from cols on.
  template <bool kVectors>
  __device__ void load(const T* row, int column, int cols) {
    values = {};
    if constexpr (kVectors) {
      if (column < cols) values = load_vec<kPiece>(row + column);
    } else {
#pragma unroll
      for (int i = 0; i < kPiece; ++i)
        if (column + i < cols) values.values[i] = row[column + i];
    }
  }
  // The largest magnitude's bits, which are in its order; a NaN is the largest.
  __device__ std::uint32_t largest() const {
    std::uint32_t bits = 0;
#pragma unroll
    for (const T& value : values.values) bits = max(bits, __float_as_uint(fabsf(widen(value))));
    return bits;
  }
};

// What x is divided by: as IEEE 754 rounds it, by a correctly rounded reciprocal and two corrections by the
// remainder (Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor", 1990).
// Both are times a power of two first where a step would over- or underflow in a way that a code shows.
struct InputScale {
  float scale;
  float factor;
  float divisor;
  float reciprocal;

  __device__ explicit InputScale(float value)
      : scale(value),
        factor(value < 0x1p-60F  ? 0x1p64F
               : value < 0x1p60F ? 1.0F
                                 : 0x1p-64F),
        divisor(value * factor),
        reciprocal(1.0F / divisor) {}
  template <typename Codes>
  __device__ static InputScale of_largest(std::uint32_t bits) {
    return InputScale(bits == 0 ? 1.0F : __uint_as_float(bits) / Codes::kMost);
  }

  __device__ float divide(float x) const {
    x *= factor;
    const float near = x * reciprocal;
    float quotient = fmaf(fmaf(-near, divisor, x), reciprocal, near);
    quotient = fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
    return fabsf(near) < 1024 ? quotient : near;  // which is more than the largest code
  }
  template <typename Codes, typename T>
  __device__ uint2 encode(const InputPiece<T>& piece) const {
    std::uint16_t pairs[kPiece / 2];
#pragma unroll
    for (int i = 0; i < kPiece; i += 2)
      pairs[i / 2] =
          Codes::encode(divide(widen(piece.values.values[i])), divide(widen(piece.values.values[i + 1])));
    return make_uint2(pairs[0] | std::uint32_t{pairs[1]} << 16, pairs[2] | std::uint32_t{pairs[3]} << 16);
  }
};

// Of `lanes` neighbours, a power of two.
__device__ inline std::uint32_t largest_of_lanes(std::uint32_t bits, int lanes) {
  for (int step = 1; step < lanes; step *= 2) bits = max(bits, __shfl_xor_sync(~0U, bits, step));
  return bits;
}

constexpr int kRoundThreads = 256;
constexpr int kRoundBarrier = 1;

// A row of x as codes, store(column, 8 of them) for each 8 of matrix.stride, and scales, so many apart, one
// for each of the matrix's blocks of columns; by kRoundThreads threads.
template <typename Codes, bool kVectors, typename T, typename Store>
__device__ void round_row(const T* row, const W8a8Matrix& matrix, int thread, float* scales, int scale_stride,
                          Store&& store) {
  __shared__ std::uint32_t largest_of_warps[kRoundThreads / 32];
  constexpr int kStep = kRoundThreads * kPiece;
  constexpr int kInFlight =
      6;  // pieces that a thread reads at a time; beside copies of weights it takes 1 µs
  InputPiece<T> pieces[kInFlight];
  const auto load = [&](int begin) {
#pragma unroll
    for (int i = 0; i < kInFlight; ++i)
      pieces[i].template load<kVectors>(row, begin + i * kStep + thread * kPiece, matrix.cols);
  };
  const bool in_blocks = matrix.input.in_blocks && matrix.block_cols < matrix.cols;
  InputScale scale(matrix.input.scale);
  if (!in_blocks && matrix.input.scale == 0) {
    std::uint32_t largest = 0;
    for (int begin = 0; begin < matrix.cols; begin += kInFlight * kStep) {
      load(begin);
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) largest = max(largest, pieces[i].largest());
    }
    largest = largest_of_lanes(largest, 32);
    if (thread % 32 == 0) largest_of_warps[thread / 32] = largest;
    sync_threads(kRoundBarrier, kRoundThreads);
    scale = InputScale::of_largest<Codes>(
        largest_of_lanes(largest_of_warps[thread % (kRoundThreads / 32)], kRoundThreads / 32));
  }
  const bool is_loaded = !in_blocks && matrix.input.scale == 0 && matrix.cols <= kInFlight * kStep;
  for (int begin = 0; begin < matrix.stride; begin += kInFlight * kStep) {
    if (!is_loaded) load(begin);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i * kStep >= matrix.stride) break;  // of all threads
      const int column = begin + i * kStep + thread * kPiece;
      if (in_blocks) {
        scale =
            InputScale::of_largest<Codes>(largest_of_lanes(pieces[i].largest(), matrix.block_cols / kPiece));
        if (column % matrix.block_cols == 0 && column < matrix.cols)
          scales[std::int64_t{column / matrix.block_cols} * scale_stride] = scale.scale;
      }
      if (column < matrix.stride) store(column, scale.encode<Codes>(pieces[i]));
    }
  }
  for (int i = thread; i < matrix.num_blocks && !in_blocks; i += kRoundThreads)
    scales[std::int64_t{i} * scale_stride] = scale.scale;
}

// A sum over codes in numbers, and the bias: rounded alike wherever it is computed.
__device__ inline float scaled_sum(float sum, float row_scale, float token_scale, float bias) {
  return __fadd_rn(__fmul_rn(__fmul_rn(sum, row_scale), token_scale), bias);
}

}  // namespace quire::cuda
