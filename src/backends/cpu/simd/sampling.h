#pragma once

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

// The first largest of x, or a NaN where there is one.
Candidate top(const float* x, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;
  Candidate best = {-__builtin_inff(), 0};
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = smaller(n, begin + kBlock);
    F highest = Vec::set1(-__builtin_inff());
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const int count = lanes_left(i, end);
      const F values = Vec::first_lanes(count, load_some(x + i, count), Vec::set1(-__builtin_inff()));
      if (Vec::any_nan(values)) return {__builtin_nanf(""), i};
      highest = Vec::max(values, highest);
    }
    if (const float score = max_lanes(highest); score > best.score) best = {score, begin};
  }
  while (best.id < n && x[best.id] != best.score) ++best.id;
  return best;
}

// Uniform numbers in (0, 1) for the 4 * kLanes ids from `first` on, a multiple of 4: Philox4x32-10, as
// philox4x32 of ops/philox.h. Lanes have the counters that bring the ids into order when words and lanes
// change places within 128 bits.
[[gnu::always_inline]] inline void uniforms(const Draw& draw, std::int64_t first, F (&out)[4]) {
  alignas(64) std::uint32_t counters[kLanes];
  for (int lane = 0; lane < kLanes; ++lane)
    counters[lane] = static_cast<std::uint32_t>(first / 4 + lane % 4 * (kLanes / 4) + lane / 4);
  using I = Vec::I;
  I c[4] = {Vec::load_ints(counters), Vec::set1(static_cast<std::uint32_t>(draw.position)), Vec::set1(0U),
            Vec::set1(0U)};
  auto key0 = static_cast<std::uint32_t>(draw.seed);
  auto key1 = static_cast<std::uint32_t>(draw.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    I high0, high1;
    const I low0 = Vec::multiply(c[0], 0xD2511F53U, high0);
    const I low1 = Vec::multiply(c[2], 0xCD9E8D57U, high1);
    c[0] = high1 ^ c[1] ^ Vec::set1(key0);
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ Vec::set1(key1);
    c[3] = low0;
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  Vec::swap_words_and_lanes(c);
  const F most = Vec::set1(0x1.fffffep-1F);  // kMostUniform of ops/philox.h
  for (int i = 0; i < 4; ++i)
    out[i] = Vec::min((Vec::to_floats(c[i]) + Vec::set1(0.5F)) * Vec::set1(0x1p-32F), most);
}

// -ln(-ln(1 - u)): a logit plus it is the logarithm of a probability over an exponentially distributed
// number.
[[gnu::always_inline]] inline F gumbel(F u) {
  const F one = Vec::set1(1.0F);
  const F rest = one - u;
  // ln(1 - u) * u / (1 - (1 - u)) makes up for what rounding 1 - u lost (Kahan).
  const F taken = one - rest;
  const F exact = (Vec::zero() - log(rest)) * u / taken;
  const F exponential = Vec::where_less(Vec::zero(), taken, exact, u);
  return Vec::zero() - log(exponential);
}

// The first of the largest scores.
Candidate race(const Draw& draw) {
  constexpr int kDraws = 4 * kLanes;
  Candidate best = {-__builtin_inff(), draw.first};
  for (std::int64_t i = 0; i < draw.n; i += kDraws) {
    F scores[4];
    uniforms(draw, draw.first + i, scores);
    F highest = Vec::set1(-__builtin_inff());
    for (int v = 0; v < 4; ++v) {
      const std::int64_t left = draw.n - i - v * kLanes;
      const int count = left < 0 ? 0 : left < kLanes ? static_cast<int>(left) : kLanes;
      const F scaled = load_some(draw.logits + i + v * kLanes, count) * Vec::set1(draw.inverse_temperature);
      scores[v] = Vec::first_lanes(count, scaled + gumbel(scores[v]), Vec::set1(-__builtin_inff()));
      highest = Vec::max(scores[v], highest);
    }
    if (!Vec::any_greater(highest, Vec::set1(best.score))) continue;
    float values[kDraws];
    for (int v = 0; v < 4; ++v) Vec::store(values + v * kLanes, scores[v]);
    for (int lane = 0; lane < kDraws; ++lane)
      if (values[lane] > best.score) best = {values[lane], draw.first + i + lane};
  }
  return best;
}

}  // namespace
}  // namespace quire::simd
