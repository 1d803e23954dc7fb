#pragma once

#include <bit>
#include <cstdint>

namespace quire {

// What a KV cache holds keys and values as. The 8-bit floats are those of the "OCP 8-bit Floating Point
// Specification", 2023.
enum class CacheCode : std::uint8_t {
  kNone,  // numbers of the activations' type
  kE4m3,  // codes, and a scale for each token and KV head
  kE5m2,
};
// Of the magnitudes that a code stands for.
[[gnu::always_inline]] constexpr float largest_of(CacheCode code) {
  return code == CacheCode::kE4m3 ? 448 : 57344;
}
// The scale of a row whose largest magnitude is so much: the least power of two with which no value is beyond
// the codes; of zeros a small one, beside which no other row's is small. A code times it has few bits:
// bfloat16 holds it without rounding, as float16 does but for the smallest.
[[gnu::always_inline]] constexpr float row_scale(float largest, CacheCode code) {
  if (!(largest > 0)) return largest == 0 ? 0x1p-100F : largest;  // NaN remains
  constexpr std::uint32_t kMantissa = 0x7FFFFF;
  const auto bits = std::bit_cast<std::uint32_t>(largest / largest_of(code));
  return std::bit_cast<float>((bits + kMantissa) & ~kMantissa);
}

}  // namespace quire
