#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cache_code.h"

// Reading a KV cache of codes (KvCacheLayer).
namespace quire::cuda {

// An element of such a cache.
template <CacheCode kCode>
struct Code {
  static constexpr CacheCode kKind = kCode;
  std::uint8_t bits;
};

template <typename E>
inline constexpr bool kIsCode = sizeof(E) == 1;

// Calls f.template operator()<E>() with the elements of a cache: T where they are no codes.
template <typename T, typename F>
void dispatch_elements(CacheCode code, F&& f) {
  if (code == CacheCode::kNone) return f.template operator()<T>();
  code == CacheCode::kE4m3 ? f.template operator()<Code<CacheCode::kE4m3>>()
                           : f.template operator()<Code<CacheCode::kE5m2>>();
}

// The low two codes of a word and its high two as pairs of float16, which has all values of a code. Before
// compute capability 8.9 E4M3's NaN becomes a number: its row's scale is a NaN, too.
template <CacheCode kCode>
__device__ inline void widen_codes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
#if __CUDA_ARCH__ >= 890
  if constexpr (kCode == CacheCode::kE4m3) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(word));
    return;
  }
#endif
  low = __byte_perm(word, 0, 0x1404);
  high = __byte_perm(word, 0, 0x3424);
  if constexpr (kCode == CacheCode::kE4m3) {  // of float16 with a bias of 8 more
    const auto rescaled = [](std::uint32_t pair) {
      const std::uint32_t bits = (pair & 0x80008000U) | (pair >> 1 & 0x3F803F80U);
      const __half2 values = __hmul2(reinterpret_cast<const __half2&>(bits), __float2half2_rn(256));
      return reinterpret_cast<const std::uint32_t&>(values);
    };
    low = rescaled(low);
    high = rescaled(high);
  }
}

}  // namespace quire::cuda
