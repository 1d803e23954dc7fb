#pragma once

#include <cmath>
#include <cstdint>

#include "base/tensor.h"
#include "ops/activation.h"

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

}  // namespace quire
