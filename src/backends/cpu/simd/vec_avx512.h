#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.h"

namespace quire::simd {
namespace {

// Sixteen floats at a time.
struct Vec {
  using F = __m512;   // added, multiplied and so on by operators
  using I = __m512i;  // of 32 bits, unsigned
  static constexpr int kLanes = 16;
  static constexpr int kMaxHeight = 12;

  // Tokens of the next tile where so many are left. Up to 12 share weights that are converted once; tiles of
  // codes are 2 vectors wide.
  static constexpr int tile_height(std::int64_t left, bool of_codes) {
    return left <= 12 ? static_cast<int>(left) : of_codes ? 8 : 6;
  }
  // Vectors of a tile: as many sums as 32 registers hold, in whole fractions of a panel.
  static constexpr int vectors_for(int height) { return height <= 6 ? 4 : 2; }

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
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
  // The sum over the lanes of each.
  static __m128 sum_each(F a, F b, F c, F d) {
    const auto halved = [](F x) {
      return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    };
    const __m256 sums =
        _mm256_hadd_ps(_mm256_hadd_ps(halved(a), halved(b)), _mm256_hadd_ps(halved(c), halved(d)));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  }

  static I set1(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  static I load_ints(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
  // The lower halves of a * b.
  static I multiply(I a, std::uint32_t b, I& upper_halves) {
    const I even = _mm512_mul_epu32(a, set1(b));
    const I odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), set1(b));
    upper_halves = _mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
    return _mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
  }
  // Within each 128 bits, lane j of word i becomes lane i of word j.
  static void swap_words_and_lanes(I (&w)[4]) {
    const I a = _mm512_unpacklo_epi32(w[0], w[1]), b = _mm512_unpacklo_epi32(w[2], w[3]);
    const I c = _mm512_unpackhi_epi32(w[0], w[1]), d = _mm512_unpackhi_epi32(w[2], w[3]);
    w[0] = _mm512_unpacklo_epi64(a, b);
    w[1] = _mm512_unpackhi_epi64(a, b);
    w[2] = _mm512_unpacklo_epi64(c, d);
    w[3] = _mm512_unpackhi_epi64(c, d);
  }
  static F to_floats(I x) { return _mm512_cvtepu32_ps(x); }

  // The even and the odd ones of 32 bfloat16.
  static F even_bf16(const void* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  template <int = 0>
  static F odd_bf16(const void* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
  }

  // Bytes as unsigned integers, and back from them what they stand for.
  static I load_bytes(const std::uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static I left(I x, int n) { return _mm512_slli_epi32(x, static_cast<unsigned>(n)); }
  static I right(I x, int n) { return _mm512_srli_epi32(x, static_cast<unsigned>(n)); }
  static I right_signed(I x, int n) { return _mm512_srai_epi32(x, static_cast<unsigned>(n)); }
  static F signed_to_floats(I x) { return _mm512_cvtepi32_ps(x); }
  static I floats_to_signed(F x) { return _mm512_cvtps_epi32(x); }  // to nearest
  static I add_ints(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_ints(I a, I b) { return _mm512_sub_epi32(a, b); }
  // The lowest bytes.
  static void store_bytes(std::uint8_t* p, I x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
  }
  static F as_floats(I x) { return _mm512_castsi512_ps(x); }
  static I as_bits(F x) { return _mm512_castps_si512(x); }
  // Of the lower halves, bits of binary16.
  static F halves_to_floats(I x) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(x)); }
  // Thirty-two codes of E4M3 or E5M2 as the upper bits of binary16; its bias is 8 more than E4M3's, whose
  // doubled sign takes the place of the highest bit of the exponent.
  template <bool kE4m3>
  static void widen_bytes(const std::uint8_t* p, Float16* to) {
    const __m512i codes = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512i e4m3 = _mm512_and_si512(_mm512_slli_epi16(codes, 7), _mm512_set1_epi16(~0x4000));
    _mm512_storeu_si512(to, kE4m3 ? e4m3 : _mm512_slli_epi16(codes, 8));
  }
  // Sixteen floats, and those at the lower four bits of each index.
  struct Table {
    F values;
    explicit Table(const float* p) : values(load(p)) {}
    F at(I index) const { return _mm512_permutexvar_ps(index, values); }
  };

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
    const __m512i upper = _mm512_srli_epi32(round_to_bf16(x), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
  }
  // Thirty-two of them, each from one and the other in turn.
  static void store_pairs(BFloat16* p, F even, F odd) {
    const __m512i lower = _mm512_srli_epi32(round_to_bf16(even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xAAAAAAAA, lower, round_to_bf16(odd)));
  }
  static void store_as(Float16* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

 private:
  // In the upper half of each lane; the lower one is undefined.
  static __m512i round_to_bf16(F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(_mm512_set1_epi32(0x7FFF), last));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    return _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet);
  }
};

}  // namespace
}  // namespace quire::simd
