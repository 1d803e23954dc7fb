#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire {

enum class DType : std::uint8_t { kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

std::size_t size_of(DType dtype);         // bytes of one element
std::string_view to_string(DType dtype);  // "float32", "bfloat16", …
constexpr bool is_float(DType dtype) { return dtype <= DType::kBF16; }

// The upper half of an IEEE float32.
struct BFloat16 {
  std::uint16_t bits;
};
// IEEE binary16.
struct Float16 {
  std::uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline float to_float(Float16 value) {
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000U} << 16;
  const std::uint32_t magnitude = value.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U)
    return std::bit_cast<float>(sign | 0x7F800000U | (magnitude << 13));  // infinity, NaN
  // Scaling by 2^112 moves the exponent from bias 15 to bias 127 and makes subnormals exact.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | sign);
}

// Rounding to nearest, ties to even; NaN stays NaN.
template <typename T>
T from_float(float value);

template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline BFloat16 from_float<BFloat16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16)};
}
template <>
inline Float16 from_float<Float16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x477FF000U) return {static_cast<std::uint16_t>(sign | 0x7C00U)};  // rounds to infinity
  if (magnitude < 0x38800000U) {  // subnormal: the addition rounds at 2^-24, the last place of binary16
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

// Converts n elements between float types; src and dst do not overlap unless the types are the same.
void convert(DType from, const void* src, DType to, void* dst, std::size_t n);

// Calls f.template operator()<T>() with the element type of a float dtype.
template <typename F>
decltype(auto) dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBF16:
      return f.template operator()<BFloat16>();
    case DType::kF16:
      return f.template operator()<Float16>();
    default:
      return f.template operator()<float>();
  }
}

}  // namespace quire
