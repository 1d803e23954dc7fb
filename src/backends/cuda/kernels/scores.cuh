#pragma once

#include "backends/cuda/kernels/attention.h"
#include "backends/cuda/kernels/vec.cuh"

namespace quire::cuda {

// What attention's fast kernels do to scores besides products. Weights are powers of 2, and so scores are in
// base 2.

// To 1e-6, where tanh.approx is off by 5e-4.
__device__ inline float tanh_approx(float x) {
  constexpr float kTwiceLog2E = 2 * kLog2E;
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1 + exp2_approx(kTwiceLog2E * x)));
  return 1 - 2 * inverse;
}

// Of a head, beside weights relative to the score `top`. sinks may be null.
__device__ inline float sink_weight(const float* sinks, int head, float top) {
  return sinks == nullptr ? 0.0F : exp2_approx(sinks[head] * kLog2E - top);
}

}  // namespace quire::cuda
