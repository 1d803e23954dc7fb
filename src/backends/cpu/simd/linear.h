#pragma once

// Ops::linear of a matrix in panels, plain or of codes.

#include "backends/cpu/simd/coded_matmul.h"

namespace quire::simd {
namespace {

void linear_panels(const LinearJob& job, std::int64_t begin, std::int64_t end, float* scratch) {
  if (job.coded != nullptr) {
    multiply_coded_panels(job, begin, end, scratch);
    return;
  }
  const bool wide = job.tokens >= kWideTokens;
#if defined(__AVX512BF16__)
  if (takes_pairs(job)) {
    multiply_panels<WeightPairs, false>(job, begin, end, scratch);
    return;
  }
#endif
  if (job.dtype == DType::kBF16) {
    wide ? multiply_panels<Weights<BFloat16>, true>(job, begin, end, scratch)
         : multiply_panels<Weights<BFloat16>, false>(job, begin, end, scratch);
  } else if (job.dtype == DType::kF16) {
    wide ? multiply_panels<Weights<Float16>, true>(job, begin, end, scratch)
         : multiply_panels<Weights<Float16>, false>(job, begin, end, scratch);
  } else {
    wide ? multiply_panels<Weights<float>, true>(job, begin, end, scratch)
         : multiply_panels<Weights<float>, false>(job, begin, end, scratch);
  }
}

}  // namespace
}  // namespace quire::simd
