#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.h"

namespace quire::simd {
namespace {

// Eight floats at a time.
struct Vec {
  using F = __m256;
  static constexpr int kLanes = 8;
  static constexpr int kMaxAccumulators = 12;  // of 16 registers
  static constexpr int kTallTile = 0;          // too few registers for one
  static constexpr int kTallVectors = 0;

  // Accumulators a token that `tokens` of them at once leave room for, in whole fractions of a panel.
  static constexpr int vectors_for(int tokens) { return tokens == 1 ? 8 : tokens <= 3 ? 4 : 2; }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  // b where one of them is NaN.
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // a < b ? yes : no
  static F where_less(F a, F b, F yes, F no) {
    return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
  }
  // The first n lanes of x, `rest` in the others.
  static F first_lanes(int n, F x, F rest) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane)));
  }
  static bool any_nan(F x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
  static bool any_greater(F a, F b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
  // x * 2^n for whole n from -126 to 127.
  static F scale_by_power(F x, F n) {
    const __m256i power = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return mul(x, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
  }
  // x = mantissa * 2^exponent of a normal positive x, the mantissa in [0.75, 1.5).
  static F split(F x, F& exponent) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i power = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3F400000)), 23);
    exponent = _mm256_cvtepi32_ps(power);
    return _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(power, 23)));
  }

  // The even and the odd ones of 16 bfloat16.
  static F even_bf16(const void* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_bits(p), 16)); }
  static F odd_bf16(const void* p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(load_bits(p), _mm256_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  static F load_as(const float* p) { return load(p); }
  static F load_as(const BFloat16* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  static F load_as(const Float16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static void store_as(float* p, F x) { store(p, x); }
  static void store_as(BFloat16* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), last));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i upper = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store_as(Float16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

 private:
  static __m256i load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
};

}  // namespace
}  // namespace quire::simd
