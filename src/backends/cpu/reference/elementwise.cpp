#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference_backend.h"

namespace quire {
namespace {

template <typename T>
T* row(const Tensor& tensor, std::int64_t i) {
  return tensor.data_as<T>() + i * tensor.stride(0);
}

float activated(float x, Activation activation) {
  constexpr float kSqrtTwoOverPi = 0.7978845608F;
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0F + std::exp(-x));
    case Activation::kGelu:
      return 0.5F * x * (1.0F + std::tanh(kSqrtTwoOverPi * (x + 0.044715F * x * x * x)));
  }
  return x;
}

// One row; RMSNorm, or with a bias LayerNorm.
template <typename Out, typename In>
void norm_row(Out* out, const In* x, std::int64_t n, const NormParams& params) {
  const auto* weight = params.weight.data_as<const float>();
  const auto* bias = params.bias.data_as<const float>();
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

}  // namespace

void ReferenceBackend::norm(const Tensor& out, const Tensor& x, const NormParams& params) {
  dispatch_float(out.dtype(), [&]<typename Out>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      if (x.dtype() == DType::kF32) {
        norm_row(row<Out>(out, t), row<const float>(x, t), x.dim(1), params);
      } else {
        norm_row(row<Out>(out, t), row<const Out>(x, t), x.dim(1), params);
      }
    }
  });
}

void ReferenceBackend::add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                                const NormParams& params) {
  dispatch_float(x.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      for (std::int64_t i = 0; i < x.dim(1); ++i)
        row<float>(residual, t)[i] += scale * to_float(row<const T>(x, t)[i]);
    }
  });
  norm(out, residual, params);
}

void ReferenceBackend::activate(const Tensor& out, const Tensor& x, Activation activation) {
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      for (std::int64_t i = 0; i < out.dim(1); ++i)
        row<T>(out, t)[i] = from_float<T>(activated(to_float(row<const T>(x, t)[i]), activation));
    }
  });
}

void ReferenceBackend::activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) {
  const std::int64_t n = out.dim(1);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      const T* gate = row<const T>(gate_up, t);
      for (std::int64_t i = 0; i < n; ++i)
        row<T>(out, t)[i] = from_float<T>(activated(to_float(gate[i]), activation) * to_float(gate[n + i]));
    }
  });
}

void ReferenceBackend::cap(const Tensor& x, float cap) {
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t i = 0; i < x.dim(1); ++i) {
      float& value = row<float>(x, t)[i];
      value = cap * std::tanh(value / cap);
    }
  }
}

void ReferenceBackend::gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) {
  const auto bytes = static_cast<std::size_t>(x.dim(1)) * size_of(x.dtype());
  for (std::int64_t i = 0; i < rows.dim(0); ++i) {
    std::memcpy(out.rows(i, 1).data(), x.rows(rows.data_as<const std::int32_t>()[i], 1).data(), bytes);
  }
}

void ReferenceBackend::fill_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) {
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    const std::int32_t place = places.data_as<const std::int32_t>()[t];
    if (place >= 0) ids.data_as<std::int32_t>()[t] = tokens.data_as<const std::int32_t>()[place];
  }
}

}  // namespace quire
