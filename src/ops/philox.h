#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace quire {

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011): 128 random bits as a pure function of a 64-bit key and a 128-bit counter.
inline std::array<std::uint32_t, 4> philox4x32(std::uint64_t key, std::array<std::uint32_t, 4> counter) {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {
        static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
        static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  return counter;
}

// Exponentially distributed with rate 1. Small values, the ones that win a race, keep 32 bits of resolution.
inline float exponential(std::uint32_t bits) {
  const float uniform = (static_cast<float>(bits) + 0.5F) * 0x1p-32F;  // in (0, 1]
  return -std::log1p(-uniform);
}

}  // namespace quire
