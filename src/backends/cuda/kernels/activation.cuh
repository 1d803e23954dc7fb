#pragma once

#include "ops/activation.h"

namespace quire::cuda {

// SiLU, GELU and the gate of SwigluOai are x * sigmoid(x * (linear + cubic * x²)): (1 + tanh(a)) / 2, as GELU
// has it, is sigmoid(2a), with a = sqrt(2 / pi) * (x + 0.044715 * x³).
struct ActivationTerms {
  float linear = 1;  // SiLU's
  float cubic = 0;
};

inline ActivationTerms terms_of(Activation activation) {
  constexpr float kTwiceSqrtTwoOverPi = 1.5957691216F;
  if (activation == Activation::kGelu) return {kTwiceSqrtTwoOverPi, kTwiceSqrtTwoOverPi * 0.044715F};
  if (activation == Activation::kSwigluOai) return {kSwigluAlpha, 0};
  return {};
}

__device__ inline float activated(float x, const ActivationTerms& terms) {
  return __fdividef(x, 1.0F + expf(-x * (terms.linear + terms.cubic * x * x)));
}

// The activations that are not x * sigmoid(...), nor in the kernels of products.
struct Relu2 {};
struct Identity {};

__device__ inline float activated(float x, Relu2) { return x > 0 ? x * x : 0.0F; }
__device__ inline float activated(float x, Identity) { return x; }

template <typename Terms>
__device__ float gated(float gate, float up, const Terms& terms) {
  return activated(gate, terms) * up;
}
// The gate that limits both. NaN stays.
struct SwigluOai : ActivationTerms {};

__device__ inline float gated(float gate, float up, const SwigluOai& terms) {
  gate = gate > kSwigluLimit ? kSwigluLimit : gate;
  up = up > kSwigluLimit ? kSwigluLimit : up < -kSwigluLimit ? -kSwigluLimit : up;
  return activated(gate, terms) * (up + 1.0F);
}

// Calls f with what activated() and gated() take.
template <typename F>
void dispatch_activation(Activation activation, F&& f) {
  if (activation == Activation::kIdentity) return f(Identity());
  if (activation == Activation::kRelu2) return f(Relu2());
  activation == Activation::kSwigluOai ? f(SwigluOai{terms_of(activation)}) : f(terms_of(activation));
}

}  // namespace quire::cuda
