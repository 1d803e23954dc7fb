#pragma once

#include "backends/cpu/simd/vec_math.h"

namespace quire::simd {
namespace {

std::int64_t argmax(const float* x, std::int64_t n) {
  constexpr std::int64_t kBlock = 1024;
  float best = -__builtin_inff();
  std::int64_t best_block = 0;
  bool has_nan = false;
  for (std::int64_t begin = 0; begin < n; begin += kBlock) {
    const std::int64_t end = n - begin < kBlock ? n : begin + kBlock;
    F top = Vec::set1(-__builtin_inff());
    for (std::int64_t i = begin; i < end; i += kLanes) {
      const int count = lanes_left(i, end);
      const F values = Vec::first_lanes(count, load_some(x + i, count), Vec::set1(-__builtin_inff()));
      has_nan = has_nan || Vec::any_nan(values);
      top = Vec::max(values, top);
    }
    if (const float highest = max_lanes(top); highest > best) {
      best = highest;
      best_block = begin;
    }
  }
  if (has_nan || !(best < __builtin_inff()) || best == -__builtin_inff()) return -1;
  std::int64_t i = best_block;
  while (x[i] != best) ++i;
  return i;
}

// Uniform numbers in (0, 1) for the 4 * kLanes ids from `first` on, a multiple of 4: Philox4x32-10, as
// philox4x32 of ops/philox.h.
void uniforms(const Draw& draw, std::int64_t first, float* out) {
  std::uint32_t c[4][kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    c[0][lane] = static_cast<std::uint32_t>(first / 4 + lane);
    c[1][lane] = static_cast<std::uint32_t>(draw.position);
    c[2][lane] = 0;
    c[3][lane] = 0;
  }
  auto key0 = static_cast<std::uint32_t>(draw.seed);
  auto key1 = static_cast<std::uint32_t>(draw.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::uint64_t product0 = std::uint64_t{0xD2511F53U} * c[0][lane];
      const std::uint64_t product1 = std::uint64_t{0xCD9E8D57U} * c[2][lane];
      c[0][lane] = static_cast<std::uint32_t>(product1 >> 32) ^ c[1][lane] ^ key0;
      c[2][lane] = static_cast<std::uint32_t>(product0 >> 32) ^ c[3][lane] ^ key1;
      c[1][lane] = static_cast<std::uint32_t>(product1);
      c[3][lane] = static_cast<std::uint32_t>(product0);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int word = 0; word < 4; ++word) {
      out[4 * lane + word] = (static_cast<float>(c[word][lane]) + 0.5F) * 0x1p-32F;
    }
  }
}

// -ln(-ln(1 - u)): a logit plus it is the logarithm of a probability over an exponentially distributed
// number.
[[gnu::always_inline]] inline F gumbel(F u) {
  const F one = Vec::set1(1.0F);
  const F rest = Vec::sub(one, u);
  // ln(1 - u) * u / (1 - (1 - u)) makes up for what rounding 1 - u lost (Kahan).
  const F taken = Vec::sub(one, rest);
  const F positive = Vec::max(rest, Vec::set1(0x1p-30F));
  const F exact = Vec::div(Vec::mul(Vec::sub(Vec::zero(), log(positive)), u), taken);
  const F exponential = Vec::where_less(Vec::zero(), taken, exact, u);
  const F score = Vec::sub(Vec::zero(), log(exponential));
  return Vec::where_less(Vec::zero(), rest, score, Vec::set1(-__builtin_inff()));
}

std::int64_t draw(const Draw& draw) {
  constexpr int kStep = 4 * kLanes;
  float best = -__builtin_inff();
  std::int64_t winner = 0;
  float scores[kStep];
  for (std::int64_t first = 0; first < draw.n; first += kStep) {
    uniforms(draw, first, scores);
    F top = Vec::set1(-__builtin_inff());
    for (int i = 0; i < kStep && first + i < draw.n; i += kLanes) {
      const int count = lanes_left(first + i, draw.n);
      const F scaled =
          Vec::mul(load_some(draw.logits + first + i, count), Vec::set1(draw.inverse_temperature));
      const F score = Vec::first_lanes(count, Vec::add(scaled, gumbel(Vec::load(scores + i))),
                                       Vec::set1(-__builtin_inff()));
      Vec::store(scores + i, score);
      top = Vec::max(score, top);
    }
    if (!Vec::any_greater(top, Vec::set1(best))) continue;
    for (int i = 0; i < kStep && first + i < draw.n; ++i) {
      if (scores[i] > best) {
        best = scores[i];
        winner = first + i;
      }
    }
  }
  return winner;
}

}  // namespace
}  // namespace quire::simd
