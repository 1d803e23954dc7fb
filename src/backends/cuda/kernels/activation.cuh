#pragma once

#include "ops/activation.h"

namespace quire::cuda {

// SiLU and GELU are x * sigmoid(x * (linear + cubic * x²)): (1 + tanh(a)) / 2, as GELU has it, is
// sigmoid(2a), with a = sqrt(2 / pi) * (x + 0.044715 * x³).
struct ActivationTerms {
  float linear = 1;  // SiLU's
  float cubic = 0;
};

inline ActivationTerms terms_of(Activation activation) {
  constexpr float kTwiceSqrtTwoOverPi = 1.5957691216F;
  if (activation == Activation::kGelu) return {kTwiceSqrtTwoOverPi, kTwiceSqrtTwoOverPi * 0.044715F};
  return {};
}

__device__ inline float silu(float x) { return __fdividef(x, 1.0F + expf(-x)); }

__device__ inline float activated(float x, const ActivationTerms& terms) {
  return __fdividef(x, 1.0F + expf(-x * (terms.linear + terms.cubic * x * x)));
}

}  // namespace quire::cuda
