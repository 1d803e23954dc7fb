#pragma once

// Words of codes (CodedLayout, kernels.h) as floats, or as pairs of bfloat16.

#include "backends/cpu/simd/matmul.h"

namespace quire::simd {
namespace {

// Codes of E4M3 read as the upper bits of a binary16, which has a bias of 8 more: values / 256.
[[gnu::always_inline]] inline F e4m3_as_halves(Vec::I code) {
  const Vec::I sign = Vec::left(code & Vec::set1(0x80U), 8);
  return Vec::halves_to_floats(sign | Vec::left(code & Vec::set1(0x7FU), 7));
}

// Codes of 6 bits: those of two columns in the lower bits of both halves.
template <int kPair>
[[gnu::always_inline]] inline Vec::I pair_of_six_bits(const Vec::I (&words)[3]) {
  const auto join = [](Vec::I lower, Vec::I upper, std::uint32_t mask) {
    return (lower & Vec::set1(mask)) | (upper & Vec::set1(mask ^ 0x3F003FU));
  };
  if constexpr (kPair == 6)
    return join(Vec::right(words[0], 12), Vec::right(words[1], 8), 0xF000FU);
  else if constexpr (kPair == 7)
    return join(Vec::right(words[1], 14), Vec::right(words[2], 10), 0x30003U);
  else
    return Vec::right(words[kPair / 2], kPair % 2 * 6);
}

// How a step reads codes: kColumns of each row, in kWords words. kActivations: floats of each token that it
// takes. kTallest: tokens of a tile of four vectors, for which there are registers.
//
// Codes as float32.
template <PackedCode kCode>
struct WordFloats {
  static constexpr int kWords = step_words(kCode);
  static constexpr int kColumns = step_columns(kCode), kActivations = kColumns;
  static constexpr int kTallest = kCode == PackedCode::k4Bits ? 4 : 3;
  static constexpr float kScale = kCode == PackedCode::kE4m3 ? 256.0F : 1.0F;
  Vec::Table table;

  explicit WordFloats(const CodedLayout& layout) : table(layout.table) {}
  template <int kColumn>
  [[gnu::always_inline]] F value(const Vec::I (&words)[kWords]) const {
    constexpr int kHalf = kColumn % 2 * 16;
    constexpr int kBit = kHalf + kColumn / 2 * (kCode == PackedCode::k4Bits ? 4 : 8);
    if constexpr (kCode == PackedCode::k4Bits) {
      return table.at(Vec::right(words[0], kBit));
    } else if constexpr (kCode == PackedCode::k6Bits) {
      constexpr bool kSplit = kColumn >= 12;  // in two words
      constexpr int kFirst = kSplit ? kHalf : kHalf + kColumn / 2 % 2 * 6;
      const Vec::I word = kSplit ? pair_of_six_bits<kColumn / 2>(words) : words[kColumn / 4 % kWords];
      return Vec::signed_to_floats(Vec::right_signed(Vec::left(word, 26 - kFirst), 26));
    } else if constexpr (kCode == PackedCode::k8Bits) {
      return Vec::signed_to_floats(Vec::right_signed(Vec::left(words[0], 24 - kBit), 24));
    } else {
      return e4m3_as_halves(Vec::right(Vec::left(words[0], 24 - kBit), 24));
    }
  }
  template <int M, int NV, int kColumn = 0>
  [[gnu::always_inline]] void step(F (&sums)[M][NV], const float* x,
                                   const Vec::I (&words)[NV][kWords]) const {
    if constexpr (kColumn < kActivations) {
      add_products(sums, x + kColumn * M, [&](int v) { return value<kColumn>(words[v]); });
      step<M, NV, kColumn + 1>(sums, x, words);
    }
  }
  // Writes a vector of rows: [kActivations][width] at `to`.
  template <int kColumn = 0>
  [[gnu::always_inline]] void widen(const Vec::I (&words)[kWords], std::int64_t width, float* to) const {
    if constexpr (kColumn < kActivations) {
      Vec::store(to + kColumn * width, value<kColumn>(words));
      widen<kColumn + 1>(words, width, to);
    }
  }
};

#if defined(__AVX512BF16__)
// The bits of bfloat16 by the lower bits of a code.
struct alignas(64) PairTable {
  std::uint16_t halves[64];  // from -32 to 31
  std::uint8_t lower[128];   // of bytes, by magnitude
  std::uint8_t upper[128];

  // The magnitudes are floats of so many bits behind the point; integers look like those of 7 and a bias of
  // -6.
  constexpr PairTable(int mantissa, int bias) : halves(), lower(), upper() {
    for (int i = 0; i < 64; ++i) halves[i] = bits_of(static_cast<float>(i < 32 ? i : i - 64));
    const auto least = __builtin_bit_cast(float, (128 - bias - mantissa) << 23);
    for (int i = 0; i < 128; ++i) {
      const bool is_normal = i >> mantissa != 0;
      const std::uint16_t bits = is_normal
                                     ? static_cast<std::uint16_t>((i << (7 - mantissa)) + ((127 - bias) << 7))
                                     : bits_of(static_cast<float>(i) * least);
      lower[i] = static_cast<std::uint8_t>(bits & 255);
      upper[i] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
  static constexpr std::uint16_t bits_of(float value) {
    return static_cast<std::uint16_t>(__builtin_bit_cast(std::uint32_t, value) >> 16);
  }
  // By the lower seven bits of each byte.
  [[gnu::always_inline]] static __m512i look_up(const std::uint8_t (&bytes)[128], __m512i magnitudes) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), magnitudes, _mm512_load_si512(bytes + 64));
  }
  // upper | (codes & 0x80)
  [[gnu::always_inline]] static __m512i with_sign(__m512i upper, __m512i codes) {
    return _mm512_ternarylogic_epi32(upper, codes, _mm512_set1_epi8(-0x80), 0xF8);
  }
};
// E4M3, E5M2 and whole numbers.
constexpr PairTable kE4m3Pairs(3, 7), kE5m2Pairs(2, 15), kIntPairs(7, -6);

// Codes as pairs of bfloat16.
template <PackedCode kCode>
struct WordPairs {
  static constexpr int kWords = step_words(kCode);
  static constexpr int kColumns = step_columns(kCode), kActivations = kColumns / 2;
  static constexpr int kTallest = kCode == PackedCode::k4Bits ? 4 : 3;
  static constexpr float kScale = 1.0F;
  static constexpr const PairTable& kTable = kCode == PackedCode::kE4m3 ? kE4m3Pairs : kIntPairs;
  __m512i first, second;  // k4Bits: of the lower five bits, of which the last is not the code's

  explicit WordPairs(const CodedLayout& layout)
      : first(_mm512_load_si512(kTable.halves)), second(_mm512_load_si512(kTable.halves + 32)) {
    if constexpr (kCode == PackedCode::k4Bits) {
      alignas(64) std::uint16_t values[32];
      for (int i = 0; i < 32; ++i) values[i] = PairTable::bits_of(layout.table[i % 16]);
      first = _mm512_load_si512(values);
    }
  }
  template <int kPair>
  [[gnu::always_inline]] __m512bh pair(const __m512i (&words)[kWords]) const {
    if constexpr (kCode == PackedCode::k4Bits)
      return (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi32(words[0], 4 * kPair), first);
    else if constexpr (kCode == PackedCode::k6Bits)
      return (__m512bh)_mm512_permutex2var_epi16(first, pair_of_six_bits<kPair>(words), second);
    else
      return (__m512bh)pair_of_bytes<kPair>(words[0]);
  }
  // Both bytes of a bfloat16 are looked up by the magnitude's seven bits; that of -128 looks like 0.
  template <int kPair>
  [[gnu::always_inline]] static __m512i pair_of_bytes(__m512i word) {
    const __m512i magnitude = kCode == PackedCode::k8Bits ? _mm512_abs_epi8(word) : word;
    const __m512i lower = PairTable::look_up(kTable.lower, magnitude);
    __m512i upper = PairTable::look_up(kTable.upper, magnitude);
    if constexpr (kCode == PackedCode::k8Bits)
      upper = _mm512_mask_mov_epi8(upper, _mm512_movepi8_mask(magnitude), _mm512_set1_epi8(0x43));
    upper = PairTable::with_sign(upper, word);
    constexpr __mmask64 kOdd = 0xAAAAAAAAAAAAAAAA;
    return kPair == 0 ? _mm512_mask_blend_epi8(kOdd, lower, _mm512_slli_epi16(upper, 8))
                      : _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(lower, 8), upper);
  }
  template <int M, int NV, int kPair = 0>
  [[gnu::always_inline]] void step(F (&sums)[M][NV], const float* x,
                                   const __m512i (&words)[NV][kWords]) const {
    if constexpr (kPair < kActivations) {
      __m512bh pairs[NV];
      for (int v = 0; v < NV; ++v) pairs[v] = pair<kPair>(words[v]);
      for (int m = 0; m < M; ++m) {
        const auto xs = (__m512bh)_mm512_set1_epi32(reinterpret_cast<const std::int32_t*>(x)[kPair * M + m]);
        for (int v = 0; v < NV; ++v) sums[m][v] = _mm512_dpbf16_ps(sums[m][v], xs, pairs[v]);
      }
      step<M, NV, kPair + 1>(sums, x, words);
    }
  }
  template <int kPair = 0>
  [[gnu::always_inline]] void widen(const __m512i (&words)[kWords], std::int64_t width, float* to) const {
    if constexpr (kPair < kActivations) {
      _mm512_storeu_si512(to + kPair * width, (__m512i)pair<kPair>(words));
      widen<kPair + 1>(words, width, to);
    }
  }
};
#endif

}  // namespace
}  // namespace quire::simd
