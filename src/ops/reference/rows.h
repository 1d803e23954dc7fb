#pragma once

#include <cmath>
#include <cstdint>

#include "ops/ops.h"

namespace quire {

// Row i of a matrix.
template <typename T>
T* row(const Tensor& tensor, std::int64_t i) {
  return tensor.data_as<T>() + i * tensor.stride(0);
}

inline float activated(float x, Activation activation) {
  constexpr float kSqrtTwoOverPi = 0.7978845608F;
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0F + std::exp(-x));
    case Activation::kGelu:
      return 0.5F * x * (1.0F + std::tanh(kSqrtTwoOverPi * (x + 0.044715F * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
    case Activation::kSwigluOai:
      return x / (1.0F + std::exp(-kSwigluAlpha * x));
    case Activation::kIdentity:
      break;
  }
  return x;
}

// One row; RMSNorm, with a bias LayerNorm, without a weight a copy. out may be x.
template <typename Out, typename In>
void norm_row(Out* out, const In* x, std::int64_t n, const NormParams& params) {
  const auto* weight = params.weight.data_as<const float>();
  const auto* bias = params.bias.data_as<const float>();
  if (weight == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = from_float<Out>(to_float(x[i]));
    return;
  }
  float center = 0;
  for (std::int64_t i = 0; bias != nullptr && i < n; ++i) center += to_float(x[i]);
  center /= static_cast<float>(n);
  float squares = 0;
  for (std::int64_t i = 0; i < n; ++i) squares += (to_float(x[i]) - center) * (to_float(x[i]) - center);
  const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(n) + params.eps);
  for (std::int64_t i = 0; i < n; ++i) {
    const float value = (to_float(x[i]) - center) * inverse * weight[i];
    out[i] = from_float<Out>(bias == nullptr ? value : value + bias[i]);
  }
}

}  // namespace quire
