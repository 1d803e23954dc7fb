#include "ops/linear_format.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quire {

void quantize_input(const LinearFormat& format, const float* x, std::int64_t cols, float* codes,
                    float* scales) {
  const InputFormat& input = format.input;
  const bool is_float = input.code == InputFormat::Code::kE4m3;
  const float most = is_float ? 448.0F : 127.0F;
  const std::int64_t block = input.in_blocks ? std::min(format.block_cols, cols) : cols;
  for (std::int64_t begin = 0; begin < cols; begin += block) {
    const std::int64_t end = std::min(begin + block, cols);
    float scale = input.scale;
    if (scale == 0) {
      float largest = 0;
      for (std::int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(x[i]));
      scale = largest > 0 ? largest / most : 1;
    }
    scales[begin / block] = scale;
    for (std::int64_t i = begin; i < end; ++i) {
      const float value = x[i] / scale;
      codes[i] = is_float ? from_e4m3(to_e4m3(value)) : std::nearbyint(std::clamp(value, -most, most));
    }
  }
}

float from_e4m3(std::uint8_t bits) {
  // Moved to the exponent and mantissa of a binary16, and scaled by 2^8 from bias 15 to bias 7.
  const std::uint16_t half = static_cast<std::uint16_t>((bits & 0x80U) << 8 | (bits & 0x7FU) << 7);
  return (bits & 0x7FU) == 0x7FU ? NAN : to_float(Float16{half}) * 256.0F;
}

namespace {

// The nearest, ties to even. least_exponent: of the normal ones, and of the subnormals.
std::uint8_t to_float8(float value, int mantissa_bits, int least_exponent, float most) {
  if (std::isnan(value)) return 0x7F;
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80U : 0);
  const float magnitude = std::min(std::fabs(value), most);
  const int exponent = magnitude < std::ldexp(1.0F, least_exponent) ? least_exponent : std::ilogb(magnitude);
  const float places = std::nearbyint(std::ldexp(magnitude, mantissa_bits - exponent));
  return sign |
         static_cast<std::uint8_t>(static_cast<int>(places) + ((exponent - least_exponent) << mantissa_bits));
}

}  // namespace

std::uint8_t to_e4m3(float value) { return to_float8(value, 3, -6, 448); }

float from_e5m2(std::uint8_t bits) { return to_float(Float16{static_cast<std::uint16_t>(bits << 8)}); }

std::uint8_t to_e5m2(float value) { return to_float8(value, 2, -14, 57344); }

std::array<float, 256> code_values(const LinearFormat& format) {
  std::array<float, 256> values = {};
  for (int code = 0; code < 256; ++code) {
    float& value = values[code];
    if (format.code == CodeType::kInt) value = static_cast<float>(code - format.code_offset);
    if (format.code == CodeType::kE4m3) value = from_e4m3(static_cast<std::uint8_t>(code));
    if (format.code == CodeType::kTable) value = format.table[code % 16];
  }
  return values;
}

DType dtype_of(ScaleType type) {
  constexpr DType kTypes[] = {DType::kU8, DType::kF32, DType::kF16, DType::kU8,  // by ScaleType
                              DType::kI8, DType::kU8,  DType::kU8};
  return kTypes[static_cast<std::size_t>(type)];
}

void read_scales(ScaleType type, const void* scales, std::int64_t n, float* out) {
  const auto* bytes = static_cast<const std::uint8_t*>(scales);
  const auto each = [&](auto value) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = value(bytes[i]);
  };
  switch (type) {
    case ScaleType::kF32:
    case ScaleType::kF16:
      return convert(dtype_of(type), scales, DType::kF32, out, static_cast<std::size_t>(n));
    case ScaleType::kU8:
      return each([](std::uint8_t code) { return static_cast<float>(code); });
    case ScaleType::kI8:
      return each([](std::uint8_t code) { return static_cast<float>(static_cast<std::int8_t>(code)); });
    case ScaleType::kE4m3:
      return each(from_e4m3);
    case ScaleType::kE8m0:
      return each(from_e8m0);
    case ScaleType::kNone:
      QUIRE_CHECK(false, "no scales are stored");
  }
}

}  // namespace quire
