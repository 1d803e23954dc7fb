#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/kernels/mma.cuh"
#include "backends/cuda/kernels/quantized.h"

// What the products of quantised matrices share: from a tile's codes to a tensor core's operand, without
// rounding, and a tile's scales.
namespace quire::cuda {

// (bits & mask) | more, in one instruction where `more` is in a register.
__device__ inline std::uint32_t masked_or(std::uint32_t bits, std::uint32_t mask, std::uint32_t more) {
  std::uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(result) : "r"(bits), "r"(mask), "r"(more));
  return result;
}

// Pairs of 16-bit values.
template <typename T>
struct Pairs {
  static constexpr bool kIsBF16 = std::is_same_v<T, __nv_bfloat16>;
  static constexpr std::uint32_t kOnes = kIsBF16 ? 0x3F803F80 : 0x3C003C00;

  __device__ static std::uint32_t both(float value) {
    if constexpr (kIsBF16) {
      return word(__float2bfloat162_rn(value));
    } else {
      return word(__float2half2_rn(value));
    }
  }
  __device__ static std::uint32_t add(std::uint32_t a, std::uint32_t b) {
    return word(__hadd2(pair(a), pair(b)));
  }
  __device__ static std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    return word(__hmul2(pair(a), pair(b)));
  }

 private:
  using Pair = std::conditional_t<kIsBF16, __nv_bfloat162, __half2>;
  __device__ static const Pair& pair(const std::uint32_t& word) {
    return reinterpret_cast<const Pair&>(word);
  }
  __device__ static std::uint32_t word(const Pair& pair) {
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
};

// sums of 16 rows by 8 tokens -= minima times those of a block of x.
__device__ inline void subtract_minima(float (&sums)[4], float2 x_sum, float2 minimum) {
  sums[0] = fmaf(-minimum.x, x_sum.x, sums[0]);
  sums[1] = fmaf(-minimum.x, x_sum.y, sums[1]);
  sums[2] = fmaf(-minimum.y, x_sum.x, sums[2]);
  sums[3] = fmaf(-minimum.y, x_sum.y, sums[3]);
}

// Makes a lane's part of a step's operand of its codes.
template <typename T, CodeKind kCode>
class Decoder {
 public:
  static constexpr bool kIs4Bits = kCode != CodeKind::kInt8 && kCode != CodeKind::kE4m3;
  static constexpr int kVectors = kIs4Bits ? 2 : 4;  // of 16 bytes, of a lane's codes of a tile
  static constexpr int kVectorSteps = QuantizedLayout::kSteps / kVectors;

  __device__ explicit Decoder(const QuantizedMatrix& matrix) : matrix_(matrix) {
    const auto offset = static_cast<float>(matrix.layout.code_offset);
    if constexpr (kCode == CodeKind::kInt4) factor_ = Pairs<T>::both(-kUnit - offset);
    // Of 8 bits in bfloat16 the pieces stand at 128 and 128 or 256.
    if constexpr (kCode == CodeKind::kInt8) factor_ = Pairs<T>::both(-(kIsBF16 ? 2 * kUnit : kUnit) - offset);
    if constexpr (kCode == CodeKind::kE2m1) factor_ = Pairs<T>::both(kIsBF16 ? 0x1p126F : 0x1p14F);
    if constexpr (kCode == CodeKind::kE4m3) factor_ = Pairs<T>::both(kIsBF16 ? 0x1p120F : 0x1p8F);
  }

  // Of these the operand may be had with 128 more in each value, for less. (1,024 more, as in float16, would
  // cost sums of float32 their last digits.)
  static constexpr bool kIsShifted = kCode == CodeKind::kInt4 && std::is_same_v<T, __nv_bfloat16>;
  __device__ void shifted_operand(const uint4& vector, int step, std::uint32_t (&a)[4]) const {
    if constexpr (kIsShifted) {
      const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = masked_or(words[step] >> (4 * i), 0x000F000F, kUnitBits);
    } else {
      operand(vector, step, a);
    }
  }
  // Makes sums of shifted operands times x those of operands; x_sums: of x, as add_columns makes them.
  __device__ void shift_back(float (&sums)[4], float2 x_sum) const {
    const float shift = kUnit + static_cast<float>(matrix_.layout.code_offset);
    subtract_minima(sums, x_sum, make_float2(shift, shift));
  }
  // step: of the vector, known when this is compiled.
  __device__ void operand(const uint4& vector, int step, std::uint32_t (&a)[4]) const {
    const std::uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
    if constexpr (kCode == CodeKind::kInt4) {
      int4(words[step], a);
    } else if constexpr (kCode == CodeKind::kE2m1) {
      e2m1(words[step], a);
    } else if constexpr (kCode == CodeKind::kTable4) {
      table(words[step], a[0], a[1]);
      table(words[step] >> 16, a[2], a[3]);
    } else {
      eight_bits(words[step * 2], a[0], a[1]);
      eight_bits(words[step * 2 + 1], a[2], a[3]);
    }
  }

 private:
  static constexpr bool kIsBF16 = std::is_same_v<T, __nv_bfloat16>;
  // A number with the unit as its last place, whose last bits are so many ones more.
  static constexpr float kUnit = kIsBF16 ? 128 : 1024;
  static constexpr std::uint32_t kUnitBits = kIsBF16 ? 0x43004300 : 0x64006400;

  __device__ void int4(std::uint32_t word, std::uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      a[i] = Pairs<T>::add(masked_or(word >> (4 * i), 0x000F000F, kUnitBits), factor_);
  }
  // The sign to the highest bit, exponent and mantissa to the border of the type's; the factor makes up for
  // what the exponents differ by.
  __device__ void e2m1(std::uint32_t word, std::uint32_t (&a)[4]) const {
    constexpr int kShift = kIsBF16 ? 6 : 3;
    constexpr std::uint32_t kMask = 0x70007000U >> kShift;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int left = 12 - 4 * i;
      const std::uint32_t magnitude = left >= kShift ? word << (left - kShift) : word >> (kShift - left);
      a[i] = Pairs<T>::multiply(((word << left) & 0x80008000) | (magnitude & kMask), factor_);
    }
  }
  // Four codes: the first two, the others. The low and the high bytes of each are picked among those of the
  // table's first and second half by the code's last three bits, then between both by its first.
  __device__ void table(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) const {
    const auto& table = kIsBF16 ? matrix_.table_bf16 : matrix_.table_f16;
    const std::uint32_t last_bits = codes & 0x7777;
    const std::uint32_t half = ((codes >> 1) & 0x4444) | 0x3210;
    const std::uint32_t low = __byte_perm(__byte_perm(table[0], table[1], last_bits),
                                          __byte_perm(table[2], table[3], last_bits), half);
    const std::uint32_t high = __byte_perm(__byte_perm(table[4], table[5], last_bits),
                                           __byte_perm(table[6], table[7], last_bits), half);
    first = __byte_perm(low, high, 0x5140);
    second = __byte_perm(low, high, 0x7362);
  }
  // Bytes 0 and 2, bytes 1 and 3.
  __device__ void eight_bits(std::uint32_t word, std::uint32_t& first, std::uint32_t& second) const {
    if constexpr (kCode == CodeKind::kInt8) {
      first = int8(word);
      second = int8(word >> 8);
    } else {
      first = e4m3(word << 8);
      second = e4m3(word);
    }
  }
  __device__ std::uint32_t int8(std::uint32_t word) const {
    if constexpr (kIsBF16) {
      // The last seven bits at 128; the first makes 256 of 128, from which the factor takes the rest.
      const std::uint32_t last_bits = masked_or(word, 0x007F007F, kUnitBits);
      const std::uint32_t first_bit = masked_or(word, 0x00800080, kUnitBits);
      return Pairs<T>::add(Pairs<T>::add(first_bit, factor_), last_bits);
    } else {
      return Pairs<T>::add(masked_or(word, 0x00FF00FF, kUnitBits), factor_);
    }
  }
  // Of each half's higher byte.
  __device__ std::uint32_t e4m3(std::uint32_t word) const {
    constexpr int kShift = kIsBF16 ? 4 : 1;
    constexpr std::uint32_t kMask = kIsBF16 ? 0x07F007F0 : 0x3F803F80;
    return Pairs<T>::multiply((word & 0x80008000) | ((word >> kShift) & kMask), factor_);
  }

  const QuantizedMatrix& matrix_;
  std::uint32_t factor_ = 0;  // or what is added
};

// What scale and minimum bytes stand for, in shared memory.
struct ByteValues {
  float scale[256];
  float minimum[256];

  // By all threads; a barrier must follow.
  __device__ void load(const QuantizedMatrix& matrix) {
    for (int i = static_cast<int>(threadIdx.x); i < 256; i += static_cast<int>(blockDim.x)) {
      scale[i] = matrix.values->scale[i];
      minimum[i] = matrix.values->minimum[i];
    }
  }
};

// Rows g and g + 8 of each block's [8][2] values of that kind. block_of(i): the i-th's.
template <int kBlocks, typename BlockOf>
__device__ inline void read_pairs(float2 (&pairs)[kBlocks], ScaleKind kind, const std::uint8_t* values, int g,
                                  const float* bytes, const BlockOf& block_of) {
  if (kind == ScaleKind::kF16) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      pairs[i] = __half22float2(reinterpret_cast<const __half2*>(values)[block_of(i) * 8 + g]);
  } else if (kind == ScaleKind::kF32) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) pairs[i] = reinterpret_cast<const float2*>(values)[block_of(i) * 8 + g];
  } else if (kind == ScaleKind::kByte) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const uchar2 pair = reinterpret_cast<const uchar2*>(values)[block_of(i) * 8 + g];
      pairs[i] = make_float2(bytes[pair.x], bytes[pair.y]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) pairs[i] = make_float2(1, 1);
  }
}

__device__ inline void scale_pair(float2& pair, float2 factor) {
  pair.x *= factor.x;
  pair.y *= factor.y;
}

// Scales, and where kMinima minima, of rows g and g + 8 of a tile, for kBlocks equal parts of its columns
// from step `first` on.
template <int kBlocks, bool kMinima>
struct BlockScales {
  float2 scales[kBlocks];
  float2 minima[kMinima ? kBlocks : 1];

  BlockScales() = default;
  __device__ BlockScales(const QuantizedLayout& layout, const std::uint8_t* tile, int g,
                         const float* scale_bytes, const float* minimum_bytes, int first = 0) {
    read(layout, tile, g, scale_bytes, minimum_bytes, first);
  }
  // The bytes' values in scale_bytes and minimum_bytes.
  __device__ void read(const QuantizedLayout& layout, const std::uint8_t* tile, int g,
                       const float* scale_bytes, const float* minimum_bytes, int first = 0) {
    constexpr int kSteps = QuantizedLayout::kSteps / kBlocks;
    if (!kMinima && layout.scale == ScaleKind::kF16 && !layout.has_supers) {  // the usual ones, by one branch
#pragma unroll
      for (int i = 0; i < kBlocks; ++i)
        scales[i] = __half22float2(reinterpret_cast<const __half2*>(
            tile + layout.scale_at)[((first + i * kSteps) >> layout.block_log2) * 8 + g]);
      return;
    }
    const auto block_of = [&](int i) { return (first + i * kSteps) >> layout.block_log2; };
    read_pairs(scales, layout.scale, tile + layout.scale_at, g, scale_bytes, block_of);
    if (layout.has_supers) {
      const float2 super = reinterpret_cast<const float2*>(tile + layout.super_at)[g];
#pragma unroll
      for (float2& scale : scales) scale_pair(scale, super);
    }
    if constexpr (kMinima) {
      if (layout.minimum == ScaleKind::kNone) {
#pragma unroll
        for (float2& minimum : minima) minimum = make_float2(0, 0);
        return;
      }
      read_pairs(minima, layout.minimum, tile + layout.minimum_at, g, minimum_bytes, block_of);
      if (layout.is_zero) {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) scale_pair(minima[i], scales[i]);
      } else if (layout.has_supers) {
        const float2 super = reinterpret_cast<const float2*>(tile + layout.super_minimum_at)[g];
#pragma unroll
        for (float2& minimum : minima) scale_pair(minimum, super);
      }
    }
  }
};

// sums of 16 rows by 8 tokens += scales times those of a block, as mma.cuh's sums hold them.
__device__ inline void add_scaled(float (&sums)[4], const float (&block)[4], float2 scale) {
  sums[0] = fmaf(scale.x, block[0], sums[0]);
  sums[1] = fmaf(scale.x, block[1], sums[1]);
  sums[2] = fmaf(scale.y, block[2], sums[2]);
  sums[3] = fmaf(scale.y, block[3], sums[3]);
}
// sums += those of 16 columns of x.
template <typename T>
__device__ inline void add_columns(float (&sums)[4], uint2 x) {
  const std::uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
  multiply_add<T>(sums, ones, x.x, x.y);
}

// Calls f.template operator()<kCode, kMinima>() with the layout's; minima go with integers alone.
template <typename F>
void dispatch_codes(const QuantizedLayout& layout, F&& f) {
  using enum CodeKind;
  dispatch<kInt4, kE2m1, kTable4, kInt8, kE4m3>(layout.code, [&]<CodeKind kCode>() {
    if constexpr (kCode == kInt4 || kCode == kInt8)
      if (layout.minimum != ScaleKind::kNone) return f.template operator()<kCode, true>();
    f.template operator()<kCode, false>();
  });
}

// Calls f.template operator()<kBlockSteps>() with 8 where a tile's rows have one scale, with 1 or 2 steps
// where they have more.
template <typename F>
__host__ __device__ void dispatch_block_steps(const QuantizedLayout& layout, F&& f) {
  if (layout.block_log2 == 3) return f.template operator()<QuantizedLayout::kSteps>();
  layout.block_log2 != 0 ? f.template operator()<2>() : f.template operator()<1>();
}

}  // namespace quire::cuda
