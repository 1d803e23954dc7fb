#pragma once

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

// The low two codes of a word and its high two as pairs of float16, which has all values of a code.
template <CacheCode kCode>
__device__ inline void widen_codes(std::uint32_t word, std::uint32_t& low, std::uint32_t& high) {
  if constexpr (kCode == CacheCode::kE4m3) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(word));
  } else {
    low = __byte_perm(word, 0, 0x1404);
    high = __byte_perm(word, 0, 0x3424);
  }
}

}  // namespace quire::cuda
