#pragma once

// What follows from Vec. Each kernels_*.cpp includes its vec_*.h, then this and the kernels; all of it has
// internal linkage.

#include "backends/cpu/simd/kernels.h"

namespace quire::simd {
namespace {

using F = Vec::F;
constexpr int kLanes = Vec::kLanes;

[[gnu::always_inline]] inline int lanes_left(std::int64_t i, std::int64_t n) {
  return n - i < kLanes ? static_cast<int>(n - i) : kLanes;
}

// Brings some elements into the second cache: the first one has fewer reads on their way than memory needs.
// Inline, since GCC drops calls that do nothing else.
template <typename T>
[[gnu::always_inline]] inline void fetch(const T* p, std::int64_t n) {
  const auto* bytes = reinterpret_cast<const char*>(p);
  for (std::int64_t i = 0; i < n * static_cast<std::int64_t>(sizeof(T)); i += 64)
    _mm_prefetch(bytes + i, _MM_HINT_T1);
}

// The first `count` of a vector's elements, the others zero; reads no further.
template <typename T>
[[gnu::always_inline]] inline F load_some(const T* p, int count) {
  if (count == kLanes) return Vec::load_as(p);
  T values[kLanes] = {};
  __builtin_memcpy(values, p, static_cast<std::size_t>(count) * sizeof(T));
  return Vec::load_as(values);
}

template <typename T>
[[gnu::always_inline]] inline void store_some(T* p, F x, int count) {
  if (count == kLanes) {
    Vec::store_as(p, x);
    return;
  }
  T values[kLanes];
  Vec::store_as(values, x);
  __builtin_memcpy(p, values, static_cast<std::size_t>(count) * sizeof(T));
}

// In one order: pairwise by halves.
[[gnu::always_inline]] inline float sum_lanes(F x) {
  float lanes[kLanes];
  Vec::store(lanes, x);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}

[[gnu::always_inline]] inline float max_lanes(F x) {
  float lanes[kLanes];
  Vec::store(lanes, x);
  float top = lanes[0];
  for (int i = 1; i < kLanes; ++i) top = lanes[i] > top ? lanes[i] : top;
  return top;
}

// Of degrees from the highest on down to 0, by Horner's rule.
[[gnu::always_inline]] inline F polynomial(F x, float highest, auto... coefficients) {
  F p = Vec::set1(highest);
  ((p = Vec::fma(p, x, Vec::set1(coefficients))), ...);
  return p;
}

// e^x to about 1 ulp: Taylor's series to the 7th degree on [-ln(2) / 2, ln(2) / 2]; its error there is 5e-9.
// 0 below -87.3, at most e^88; NaN stays.
[[gnu::always_inline]] inline F exp(F x) {
  const F low = Vec::set1(-87.3F);
  const F bounded = Vec::min(Vec::set1(88.0F), Vec::max(low, x));
  const F n = Vec::round(bounded * Vec::set1(1.44269504F));
  // ln(2) in two parts, the first with zeros enough that its product with n is exact.
  F r = Vec::fma(n, Vec::set1(-0.693145752F), bounded);
  r = Vec::fma(n, Vec::set1(-1.42860677e-6F), r);
  const F p = polynomial(r, 1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 1.0F / 2, 1.0F, 1.0F);
  const Vec::I power = Vec::left(Vec::add_ints(Vec::floats_to_signed(n), Vec::set1(127U)), 23);  // 2^n
  return Vec::where_less(x, low, Vec::zero(), p * Vec::as_floats(power));
}

// ln of a normal positive x: 2 artanh((m - 1) / (m + 1)) by its series, whose error is under 1e-8 for m in
// [0.75, 1.5).
[[gnu::always_inline]] inline F log(F x) {
  // x = m * 2^exponent
  const Vec::I bits = Vec::as_bits(x);
  const Vec::I power = Vec::right_signed(Vec::sub_ints(bits, Vec::set1(0x3F400000U)), 23);
  const F exponent = Vec::signed_to_floats(power);
  const F m = Vec::as_floats(Vec::sub_ints(bits, Vec::left(power, 23)));
  const F s = (m - Vec::set1(1.0F)) / (m + Vec::set1(1.0F));
  const F s2 = s * s;
  const F tail = polynomial(s2, 2.0F / 11, 2.0F / 9, 2.0F / 7, 2.0F / 5, 2.0F / 3) * s2 * s;
  const F small = Vec::fma(exponent, Vec::set1(1.42860677e-6F), Vec::fma(Vec::set1(2.0F), s, tail));
  return Vec::fma(exponent, Vec::set1(0.693145752F), small);
}

// Within 2e-7 of 1, and for small x of x: 1 - 2 / (e^2x + 1), below 1/4 Taylor's series to the 9th degree.
[[gnu::always_inline]] inline F tanh(F x) {
  const F x2 = x * x;
  const F p = polynomial(x2, 62.0F / 2835, -17.0F / 315, 2.0F / 15, -1.0F / 3);
  const F near = Vec::fma(p * x2, x, x);
  const F e = exp(x + x);
  const F far = Vec::set1(1.0F) - Vec::set1(2.0F) / (e + Vec::set1(1.0F));
  return Vec::where_less(x2, Vec::set1(1.0F / 16), near, far);
}

[[gnu::always_inline]] inline F capped(F x, float cap) {
  return Vec::set1(cap) * tanh(x * Vec::set1(1 / cap));
}

// As dispatch_float, whose code is shared with the rest of the program.
template <typename Function>
[[gnu::always_inline]] inline void dispatch(DType dtype, const Function& function) {
  if (dtype == DType::kBF16) {
    function.template operator()<BFloat16>();
  } else if (dtype == DType::kF16) {
    function.template operator()<Float16>();
  } else {
    function.template operator()<float>();
  }
}

}  // namespace
}  // namespace quire::simd
