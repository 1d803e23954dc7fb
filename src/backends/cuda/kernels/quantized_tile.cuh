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

__device__ inline std::uint32_t permute_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
  return __byte_perm(low, high, selector);
}

// Pairs of 16-bit values.
template <typename T>
struct Pairs;
template <>
struct Pairs<__nv_bfloat16> {
  static constexpr std::uint32_t kOnes = 0x3F803F80;
  __device__ static std::uint32_t both(float value) {
    const __nv_bfloat162 pair = __float2bfloat162_rn(value);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static std::uint32_t add(std::uint32_t a, std::uint32_t b) {
    const __nv_bfloat162 sum =
        __hadd2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const std::uint32_t&>(sum);
  }
  __device__ static std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    const __nv_bfloat162 product =
        __hmul2(reinterpret_cast<const __nv_bfloat162&>(a), reinterpret_cast<const __nv_bfloat162&>(b));
    return reinterpret_cast<const std::uint32_t&>(product);
  }
};
template <>
struct Pairs<__half> {
  static constexpr std::uint32_t kOnes = 0x3C003C00;
  __device__ static std::uint32_t both(float value) {
    const __half2 pair = __float2half2_rn(value);
    return reinterpret_cast<const std::uint32_t&>(pair);
  }
  __device__ static std::uint32_t add(std::uint32_t a, std::uint32_t b) {
    const __half2 sum = __hadd2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const std::uint32_t&>(sum);
  }
  __device__ static std::uint32_t multiply(std::uint32_t a, std::uint32_t b) {
    const __half2 product = __hmul2(reinterpret_cast<const __half2&>(a), reinterpret_cast<const __half2&>(b));
    return reinterpret_cast<const std::uint32_t&>(product);
  }
};

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
    for (int i = 0; i < 4; ++i) {
      a[i] = Pairs<T>::add(((word >> (4 * i)) & 0x000F000F) | kUnitBits, factor_);
    }
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
    const std::uint32_t low = permute_bytes(permute_bytes(table[0], table[1], last_bits),
                                            permute_bytes(table[2], table[3], last_bits), half);
    const std::uint32_t high = permute_bytes(permute_bytes(table[4], table[5], last_bits),
                                             permute_bytes(table[6], table[7], last_bits), half);
    first = permute_bytes(low, high, 0x5140);
    second = permute_bytes(low, high, 0x7362);
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
      const std::uint32_t last_bits = (word & 0x007F007F) | kUnitBits;
      const std::uint32_t first_bit = (word & 0x00800080) | kUnitBits;
      return Pairs<T>::add(Pairs<T>::add(first_bit, factor_), last_bits);
    } else {
      return Pairs<T>::add((word & 0x00FF00FF) | kUnitBits, factor_);
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

// Rows g and g + 8 of [8][2] values of that kind.
__device__ inline float2 row_pair(ScaleKind kind, const std::uint8_t* values, int g, const float* bytes) {
  if (kind == ScaleKind::kF16) return __half22float2(reinterpret_cast<const __half2*>(values)[g]);
  if (kind == ScaleKind::kF32) return reinterpret_cast<const float2*>(values)[g];
  const uchar2 pair = reinterpret_cast<const uchar2*>(values)[g];
  return make_float2(bytes[pair.x], bytes[pair.y]);
}
__device__ inline int bytes_of_pairs(ScaleKind kind) {
  return kind == ScaleKind::kF32 ? 64 : kind == ScaleKind::kF16 ? 32 : 16;
}

// The scales of rows g and g + 8 of a tile.
class TileScales {
 public:
  __device__ TileScales(const QuantizedLayout& layout, const std::uint8_t* tile, int g,
                        const float* scale_bytes, const float* minimum_bytes)
      : layout_(layout), tile_(tile), g_(g), scale_bytes_(scale_bytes), minimum_bytes_(minimum_bytes) {
    if (!layout.has_supers) return;
    super_ = row_pair(ScaleKind::kF32, tile + layout.super_at, g, nullptr);
    if (layout.minimum != ScaleKind::kNone && !layout.is_zero)
      super_minimum_ = row_pair(ScaleKind::kF32, tile + layout.super_minimum_at, g, nullptr);
  }
  __device__ float2 scales(int block) const {
    if (layout_.scale == ScaleKind::kNone) return super_;
    const float2 scales = row_pair(
        layout_.scale, tile_ + layout_.scale_at + block * bytes_of_pairs(layout_.scale), g_, scale_bytes_);
    return make_float2(scales.x * super_.x, scales.y * super_.y);
  }
  // scales: the block's.
  __device__ float2 minima(int block, float2 scales) const {
    const float2 minima =
        row_pair(layout_.minimum, tile_ + layout_.minimum_at + block * bytes_of_pairs(layout_.minimum), g_,
                 minimum_bytes_);
    const float2 factor = layout_.is_zero ? scales : super_minimum_;
    return make_float2(minima.x * factor.x, minima.y * factor.y);
  }

 private:
  const QuantizedLayout& layout_;
  const std::uint8_t* tile_;
  int g_;
  const float* scale_bytes_;
  const float* minimum_bytes_;
  float2 super_ = {1.0F, 1.0F};
  float2 super_minimum_ = {1.0F, 1.0F};
};

// A warp's sums of a tile's 16 rows by kTokenTiles times 8 tokens, as mma.cuh's sums hold them: those of the
// blocks that have ended, times their scales, and those of the open block.
template <typename T, bool kMinima, int kTokenTiles>
struct ScaledSums {
  float values[kTokenTiles][4] = {};
  float open[kTokenTiles][4] = {};
  float x_sums[kMinima ? kTokenTiles : 1][4] = {};  // of the open block's x: the same in every row

  __device__ void add(int token_tile, const std::uint32_t (&a)[4], uint2 x) {
    multiply_add<T>(open[token_tile], a, x.x, x.y);
    if constexpr (kMinima) {
      const std::uint32_t ones[4] = {Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes, Pairs<T>::kOnes};
      multiply_add<T>(x_sums[token_tile], ones, x.x, x.y);
    }
  }
  __device__ void end_block(const TileScales& tile, int block) {
    const float2 scales = tile.scales(block);
    float2 minima = {0.0F, 0.0F};
    if constexpr (kMinima) minima = tile.minima(block, scales);
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        values[t][i] = fmaf(i < 2 ? scales.x : scales.y, open[t][i], values[t][i]);
        if constexpr (kMinima)
          values[t][i] = fmaf(i < 2 ? -minima.x : -minima.y, x_sums[t][i % 2], values[t][i]);
        open[t][i] = 0;
        if constexpr (kMinima) x_sums[t][i] = 0;
      }
    }
  }
};

// Calls f.template operator()<kCode, kMinima>() with the layout's; minima go with integers alone.
template <typename F>
void dispatch_codes(const QuantizedLayout& layout, F&& f) {
  const bool minima = layout.minimum != ScaleKind::kNone;
  switch (layout.code) {
    case CodeKind::kInt4:
      return minima ? f.template operator()<CodeKind::kInt4, true>()
                    : f.template operator()<CodeKind::kInt4, false>();
    case CodeKind::kInt8:
      return minima ? f.template operator()<CodeKind::kInt8, true>()
                    : f.template operator()<CodeKind::kInt8, false>();
    case CodeKind::kE2m1:
      return f.template operator()<CodeKind::kE2m1, false>();
    case CodeKind::kTable4:
      return f.template operator()<CodeKind::kTable4, false>();
    case CodeKind::kE4m3:
      return f.template operator()<CodeKind::kE4m3, false>();
  }
}

}  // namespace quire::cuda
