// As many accumulators as an instruction's latency times those begun a cycle, or more, so that none waits for
// another, and no more than there are registers. Each kernel is compiled for its own instruction set and
// called only where the CPU has it.
#include "inspect/matrix_probe.h"

#include <cmath>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

constexpr int kAccumulators = 16;
constexpr int kFewAccumulators = 12;  // AVX2 has 16 registers, and two hold constants

float run_portable(std::int64_t steps) {
  float sums[kFewAccumulators] = {};
  for (std::int64_t step = 0; step < steps; ++step) {
    for (float& sum : sums) sum = std::fma(sum, 0.5F, 1.0F);
  }
  return sums[0] + sums[kFewAccumulators - 1];
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) float run_avx2(std::int64_t steps) {
  const __m256 factor = _mm256_set1_ps(0.5F);
  const __m256 one = _mm256_set1_ps(1.0F);
  __m256 sums[kFewAccumulators];
  for (__m256& sum : sums) sum = one;
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kFewAccumulators; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, one);
  }
  for (const __m256& sum : sums) sums[0] = _mm256_add_ps(sums[0], sum);
  return _mm256_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f"))) float run_avx512(std::int64_t steps) {
  const __m512 factor = _mm512_set1_ps(0.5F);
  const __m512 one = _mm512_set1_ps(1.0F);
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = one;
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, one);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float run_avx512_bf16(std::int64_t steps) {
  const __m512bh factor = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5F), _mm512_set1_ps(0.25F));
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = _mm512_set1_ps(1.0F);
  for (std::int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int i = 0; i < kAccumulators; ++i) sums[i] = _mm512_dpbf16_ps(sums[i], factor, factor);
  }
  for (const __m512& sum : sums) sums[0] = _mm512_add_ps(sums[0], sum);
  return _mm512_cvtss_f32(sums[0]);
}

#endif

// A step does `products` multiply-adds.
MatrixProbe measured(std::int64_t steps, int products, float (*run)(std::int64_t)) {
  return {2.0 * products * static_cast<double>(steps), run(steps)};
}

}  // namespace

MatrixProbe run_matrix_probe(std::int64_t steps) {
#if defined(__x86_64__)
  // On Intel's processors it is slower than float32.
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_is("amd"))
    return measured(steps, 32 * kAccumulators, run_avx512_bf16);
  if (__builtin_cpu_supports("avx512f")) return measured(steps, 16 * kAccumulators, run_avx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return measured(steps, 8 * kFewAccumulators, run_avx2);
#endif
  return measured(steps, kFewAccumulators, run_portable);
}

}  // namespace quire
