#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.h"

namespace quire::simd {
namespace {

// Sixteen floats at a time.
struct Vec {
  using F = __m512;
  static constexpr int kLanes = 16;
  static constexpr int kMaxAccumulators = 24;  // of 32 registers
  static constexpr int kTallTile = 12;         // tokens that are worth a tile of fewer vectors
  static constexpr int kTallVectors = 2;

  // Accumulators a token: a whole panel's.
  static constexpr int vectors_for(int) { return 4; }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  // b where one of them is NaN.
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // a < b ? yes : no
  static F where_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  // The first n lanes of x, `rest` in the others.
  static F first_lanes(int n, F x, F rest) {
    const auto mask = static_cast<__mmask16>(n >= kLanes ? 0xFFFFU : n <= 0 ? 0U : (1U << n) - 1U);
    return _mm512_mask_blend_ps(mask, rest, x);
  }
  static bool any_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
  static bool any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
  // x * 2^n for whole n from -126 to 127.
  static F scale_by_power(F x, F n) {
    const __m512i power = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
    return mul(x, _mm512_castsi512_ps(_mm512_slli_epi32(power, 23)));
  }
  // x = mantissa * 2^exponent of a normal positive x, the mantissa in [0.75, 1.5).
  static F split(F x, F& exponent) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i power = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3F400000)), 23);
    exponent = _mm512_cvtepi32_ps(power);
    return _mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(power, 23)));
  }

  // The even and the odd ones of 32 bfloat16.
  static F even_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static F odd_bf16(const void* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  static F load_as(const float* p) { return load(p); }
  static F load_as(const BFloat16* p) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static F load_as(const Float16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static void store_as(float* p, F x) { store(p, x); }
  static void store_as(BFloat16* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7FFF), last));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i upper = _mm512_srli_epi32(_mm512_mask_blend_epi32(nan, rounded, quiet), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
  }
  static void store_as(Float16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
};

}  // namespace
}  // namespace quire::simd
