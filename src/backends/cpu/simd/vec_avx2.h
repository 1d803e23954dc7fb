#pragma once

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.h"

namespace quire::simd {
namespace {

// Eight floats at a time.
struct Vec {
  using F = __m256;   // added, multiplied and so on by operators
  using I = __m256i;  // of 32 bits, unsigned
  static constexpr int kLanes = 8;
  static constexpr int kMaxHeight = 6;

  // Tokens of the next tile where so many are left. One or three of them would leave registers idle.
  static constexpr int tile_height(std::int64_t left, bool /*of_codes*/) {
    return left == 7 || left == 9 ? 5 : left < 6 ? static_cast<int>(left) : 6;
  }
  // Vectors of a tile: as many sums as 16 registers hold, in whole fractions of a panel.
  static constexpr int vectors_for(int height) { return height == 1 ? 8 : height == 2 ? 4 : 2; }

  static F zero() { return _mm256_setzero_ps(); }
  static F set1(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
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
  // The sum over the lanes of each.
  static __m128 sum_each(F a, F b, F c, F d) {
    const F sums = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps(sums, 1));
  }

  static I set1(std::uint32_t x) { return _mm256_set1_epi32(static_cast<int>(x)); }
  static I load_ints(const std::uint32_t* p) { return load_bits(p); }
  // The lower halves of a * b.
  static I multiply(I a, std::uint32_t b, I& upper_halves) {
    const I even = _mm256_mul_epu32(a, set1(b));
    const I odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), set1(b));
    upper_halves = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
  }
  // Within each 128 bits, lane j of word i becomes lane i of word j.
  static void swap_words_and_lanes(I (&w)[4]) {
    const I a = _mm256_unpacklo_epi32(w[0], w[1]), b = _mm256_unpacklo_epi32(w[2], w[3]);
    const I c = _mm256_unpackhi_epi32(w[0], w[1]), d = _mm256_unpackhi_epi32(w[2], w[3]);
    w[0] = _mm256_unpacklo_epi64(a, b);
    w[1] = _mm256_unpackhi_epi64(a, b);
    w[2] = _mm256_unpacklo_epi64(c, d);
    w[3] = _mm256_unpackhi_epi64(c, d);
  }
  static F to_floats(I x) {  // rounded once: both parts are exact
    const F upper = _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 16));
    const F lower = _mm256_cvtepi32_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xFFFF)));
    return fma(upper, set1(65536.0F), lower);
  }

  // The even and the odd ones of 16 bfloat16. kInUse: registers that hold something else meanwhile; where
  // they are many, none is spent on a mask (GCC 12 would spill a sum, which a tile of 6 by 2 pays with a
  // third).
  static F even_bf16(const void* p) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_bits(p), 16)); }
  template <int kInUse = 0>
  static F odd_bf16(const void* p) {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xFFFF0000));
    return _mm256_castsi256_ps(kInUse < 12 ? _mm256_and_si256(load_bits(p), mask)
                                           : _mm256_slli_epi32(_mm256_srli_epi32(load_bits(p), 16), 16));
  }

  // Bytes as unsigned integers, and back from them what they stand for.
  static I load_bytes(const std::uint8_t* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  static I left(I x, int n) { return _mm256_slli_epi32(x, n); }
  static I right(I x, int n) { return _mm256_srli_epi32(x, n); }
  static I right_signed(I x, int n) { return _mm256_srai_epi32(x, n); }
  static F signed_to_floats(I x) { return _mm256_cvtepi32_ps(x); }
  static I floats_to_signed(F x) { return _mm256_cvtps_epi32(x); }  // to nearest
  static I add_ints(I a, I b) { return _mm256_add_epi32(a, b); }
  static I sub_ints(I a, I b) { return _mm256_sub_epi32(a, b); }
  // The lowest bytes; the others are zero.
  static void store_bytes(std::uint8_t* p, I x) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
  }
  static F as_floats(I x) { return _mm256_castsi256_ps(x); }
  static I as_bits(F x) { return _mm256_castps_si256(x); }
  // Of the lower halves, bits of binary16; the upper ones are zero.
  static F halves_to_floats(I x) {
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
  }
  // Sixteen codes of E4M3 or E5M2 as the upper bits of binary16; its bias is 8 more than E4M3's, whose
  // doubled sign takes the place of the highest bit of the exponent.
  template <bool kE4m3>
  static void widen_bytes(const std::uint8_t* p, Float16* to) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i e4m3 = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(~0x4000));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), kE4m3 ? e4m3 : _mm256_slli_epi16(codes, 8));
  }
  // Sixteen floats, and those at the lower four bits of each index.
  struct Table {
    F lower, upper;
    explicit Table(const float* p) : lower(load(p)), upper(load(p + 8)) {}
    F at(I index) const {
      const F a = _mm256_permutevar8x32_ps(lower, index), b = _mm256_permutevar8x32_ps(upper, index);
      return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
    }
  };

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
    const __m256i upper = _mm256_srli_epi32(round_to_bf16(x), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  // Sixteen of them, each from one and the other in turn.
  static void store_pairs(BFloat16* p, F even, F odd) {
    const __m256i lower = _mm256_srli_epi32(round_to_bf16(even), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(lower, round_to_bf16(odd), 0xAA));
  }
  static void store_as(Float16* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }

 private:
  // In the upper half of each lane; the lower one is undefined.
  static __m256i round_to_bf16(F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(_mm256_set1_epi32(0x7FFF), last));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, quiet, nan);
  }
  static __m256i load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
};

}  // namespace
}  // namespace quire::simd
