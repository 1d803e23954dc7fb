#pragma once

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

}  // namespace quire
