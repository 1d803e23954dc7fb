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

namespace detail {
// condition ? yes : no, without a branch: the compiler would move floating-point work into the branch and
// then not vectorise loops over these conversions.
constexpr std::uint32_t choose(bool condition, std::uint32_t yes, std::uint32_t no) {
  const std::uint32_t mask = 0U - static_cast<std::uint32_t>(condition);
  return (yes & mask) | (no & ~mask);
}
}  // namespace detail

inline float to_float(float value) { return value; }
inline float to_float(BFloat16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }
inline float to_float(Float16 value) {
  const std::uint32_t sign = std::uint32_t{value.bits & 0x8000U} << 16;
  const std::uint32_t magnitude = std::uint32_t{value.bits & 0x7FFFU} << 13;
  // Scaling by 2^112 moves the exponent from bias 15 to bias 127 and makes subnormals exact.
  const auto finite = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  const std::uint32_t special = 0x7F800000U | magnitude;  // infinity, NaN
  return std::bit_cast<float>(sign | detail::choose(magnitude >= 0x7C00U << 13, special, finite));
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
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t nan = (bits >> 16) | 0x40U;
  return {static_cast<std::uint16_t>(detail::choose((bits & 0x7FFFFFFFU) > 0x7F800000U, nan, rounded))};
}
template <>
inline Float16 from_float<Float16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13) & 1U)) >> 13;
  // Below 2^-14 the addition rounds at 2^-24, the last place of binary16.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3F000000U;
  std::uint32_t result = detail::choose(magnitude < 0x38800000U, subnormal, normal);
  result = detail::choose(magnitude >= 0x477FF000U, 0x7C00U, result);  // rounds to infinity
  result = detail::choose(magnitude > 0x7F800000U, 0x7E00U, result);
  return {static_cast<std::uint16_t>(sign | result)};
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
