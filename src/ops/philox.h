#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace quire {

// The halves of the product of two words, and how to get them; a backend may know a shorter way.
struct WideProduct {
  std::uint32_t low, high;
};
struct MultiplyWide {
  constexpr WideProduct operator()(std::uint32_t a, std::uint32_t b) const {
    const std::uint64_t product = std::uint64_t{a} * b;
    return {static_cast<std::uint32_t>(product), static_cast<std::uint32_t>(product >> 32)};
  }
};

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): 128 random bits as a pure function of a 64-bit key and a 128-bit counter.
template <typename Multiply = MultiplyWide>
constexpr std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, std::array<std::uint32_t, 4> counter,
                                                  Multiply multiply = {}) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const WideProduct product0 = multiply(0xD2511F53U, counter[0]);
    const WideProduct product1 = multiply(0xCD9E8D57U, counter[2]);
    counter = {product1.high ^ counter[1] ^ key0, product1.low, product0.high ^ counter[3] ^ key1,
               product0.low};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// The largest float below 1. At 1 no token could win, not even the only one that may.
inline constexpr float kMostUniform = 0x1.fffffep-1F;

// Exponentially distributed with rate 1. Small values, the ones that win a race, keep 32 bits of resolution.
inline float exponential(std::uint32_t bits) {
  const float uniform = std::min((static_cast<float>(bits) + 0.5F) * 0x1p-32F, kMostUniform);
  return -std::log1p(-uniform);
}

}  // namespace quire
