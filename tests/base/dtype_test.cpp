#include "base/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace quire {
namespace {

// A 16-bit format by its definition: sign, exponent, mantissa.
struct Format {
  int exponent_bits;
  int mantissa_bits;
};
constexpr Format kHalf{5, 10};
constexpr Format kBrain{8, 7};

double value_of(std::uint16_t bits, Format format) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = (bits >> format.mantissa_bits) & ((1 << format.exponent_bits) - 1);
  const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
  double magnitude = 0;
  if (exponent == (1 << format.exponent_bits) - 1) {
    magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
  } else if (exponent == 0) {
    magnitude = std::ldexp(mantissa, 1 - bias - format.mantissa_bits);
  } else {
    magnitude = std::ldexp(mantissa + (1 << format.mantissa_bits), exponent - bias - format.mantissa_bits);
  }
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

// Rounds by searching the table of all values: the nearest, and of two equally near the even one.
class Rounder {
 public:
  explicit Rounder(Format format) {
    const auto infinity = ((1U << format.exponent_bits) - 1U) << format.mantissa_bits;
    for (std::uint32_t bits = 0; bits < infinity; ++bits) {
      values_.push_back(value_of(static_cast<std::uint16_t>(bits), format));
    }
    // Infinity takes the place of the value that would follow the largest one.
    values_.push_back(2 * values_.back() - values_[values_.size() - 2]);
  }

  std::uint16_t round(float value) const {
    const double magnitude = std::fabs(static_cast<double>(value));
    const auto above = std::lower_bound(values_.begin(), values_.end(), magnitude);
    auto index = static_cast<std::size_t>(above - values_.begin());
    if (index == values_.size()) {
      index = values_.size() - 1;
    } else if (index > 0 && values_[index] != magnitude) {
      const double up = values_[index] - magnitude;
      const double down = magnitude - values_[index - 1];
      if (down < up || (down == up && index % 2 == 1)) --index;
    }
    return static_cast<std::uint16_t>(index | (std::signbit(value) ? 0x8000U : 0U));
  }

  // Every value, every middle between neighbours, and the floats next to them.
  std::vector<float> hard_cases() const {
    std::vector<float> cases;
    for (std::size_t i = 0; i + 1 < values_.size(); ++i) {
      for (const double exact : {values_[i], (values_[i] + values_[i + 1]) / 2}) {
        const auto value = static_cast<float>(exact);
        cases.insert(cases.end(), {value, std::nextafter(value, 0.0F), std::nextafter(value, HUGE_VALF)});
      }
    }
    return cases;
  }

 private:
  std::vector<double> values_;
};

template <typename T>
void expect_rounds_to_nearest_even(Format format) {
  const Rounder rounder(format);
  std::vector<float> cases = rounder.hard_cases();
  std::mt19937 random(1);
  while (cases.size() < 1'000'000) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(value)) cases.push_back(value);
  }
  for (const float value : cases) {
    for (const float x : {value, -value}) {
      ASSERT_EQ(from_float<T>(x).bits, rounder.round(x)) << std::hexfloat << x;
    }
  }
}

TEST(DTypeTest, RoundsFloat16ToNearestEven) { expect_rounds_to_nearest_even<Float16>(kHalf); }
TEST(DTypeTest, RoundsBFloat16ToNearestEven) { expect_rounds_to_nearest_even<BFloat16>(kBrain); }

template <typename T>
void expect_all_values_survive(Format format) {
  for (std::uint32_t i = 0; i <= 0xFFFFU; ++i) {
    const T stored{static_cast<std::uint16_t>(i)};
    const double expected = value_of(stored.bits, format);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(to_float(stored))) << i;
      ASSERT_TRUE(std::isnan(to_float(from_float<T>(to_float(stored))))) << i;
    } else {
      ASSERT_EQ(static_cast<double>(to_float(stored)), expected) << i;
      ASSERT_EQ(from_float<T>(to_float(stored)).bits, stored.bits) << i;
    }
  }
}

TEST(DTypeTest, EveryFloat16IsExactAsFloat) { expect_all_values_survive<Float16>(kHalf); }
TEST(DTypeTest, EveryBFloat16IsExactAsFloat) { expect_all_values_survive<BFloat16>(kBrain); }

TEST(DTypeTest, NaNStaysNaNWhateverItsPayload) {
  for (const std::uint32_t bits : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0x7FC00000U}) {
    const auto nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(to_float(from_float<Float16>(nan)))) << std::hex << bits;
    EXPECT_TRUE(std::isnan(to_float(from_float<BFloat16>(nan)))) << std::hex << bits;
  }
}

TEST(DTypeTest, ConvertsArraysOfAnyLengthBetweenAllFloatTypes) {
  const auto bits_of = [](DType dtype, const std::vector<std::byte>& data, std::size_t i) {
    return dispatch_float(dtype, [&]<typename T>() {
      T value;
      std::memcpy(&value, data.data() + i * sizeof(T), sizeof(T));
      return to_float(value);
    });
  };
  for (const std::size_t n : {0U, 1U, 7U, 33U, 100U}) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i) * 0.37F - 11.0F;
    for (const DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
      std::vector<std::byte> source(n * size_of(from) + 1);
      convert(DType::kF32, values.data(), from, source.data(), n);
      for (const DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
        std::vector<std::byte> target(n * size_of(to) + 1, std::byte{0x5A});
        convert(from, source.data(), to, target.data(), n);
        for (std::size_t i = 0; i < n; ++i) {
          const float expected = dispatch_float(
              to, [&]<typename T>() { return to_float(from_float<T>(bits_of(from, source, i))); });
          ASSERT_EQ(bits_of(to, target, i), expected) << to_string(from) << " to " << to_string(to);
        }
        EXPECT_EQ(target.back(), std::byte{0x5A}) << "wrote past the end";
      }
    }
  }
}

TEST(DTypeTest, NamesAndSizesAgree) {
  const std::vector<std::pair<DType, std::string_view>> names{
      {DType::kF32, "float32"}, {DType::kF16, "float16"}, {DType::kBF16, "bfloat16"},
      {DType::kI64, "int64"},   {DType::kI32, "int32"},   {DType::kI16, "int16"},
      {DType::kI8, "int8"},     {DType::kU8, "uint8"},    {DType::kBool, "bool"}};
  const std::vector<std::size_t> sizes{4, 2, 2, 8, 4, 2, 1, 1, 1};
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(to_string(names[i].first), names[i].second);
    EXPECT_EQ(size_of(names[i].first), sizes[i]) << names[i].second;
    EXPECT_EQ(is_float(names[i].first), i < 3) << names[i].second;
  }
}

}  // namespace
}  // namespace quire
