#include <cmath>
#include <cstring>
#include <numeric>

#include "backends/cpu/reference/reference_backend.h"

namespace quire {
namespace {

template <typename T>
T* row(const Tensor& tensor, std::int64_t i) {
  return tensor.data_as<T>() + i * tensor.stride(0);
}

// The sum of a row's squared distances from `center`.
float sum_of_squares(const float* values, std::int64_t n, float center) {
  float sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += (values[i] - center) * (values[i] - center);
  return sum;
}

}  // namespace

void ReferenceBackend::norm(const Tensor& out, const Tensor& x, const NormParams& params) {
  const std::int64_t n = x.dim(1);
  const auto* weight = params.weight.data_as<const float>();
  const auto* bias = params.bias.data_as<const float>();
  dispatch_float(out.dtype(), [&]<typename Out>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      const auto* values = row<const float>(x, t);
      auto* normed = row<Out>(out, t);
      const float center =
          bias == nullptr ? 0.0F : std::accumulate(values, values + n, 0.0F) / static_cast<float>(n);
      const float inverse =
          1.0F / std::sqrt(sum_of_squares(values, n, center) / static_cast<float>(n) + params.eps);
      for (std::int64_t i = 0; i < n; ++i) {
        const float value = (values[i] - center) * inverse * weight[i];
        normed[i] = from_float<Out>(bias == nullptr ? value : value + bias[i]);
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

void ReferenceBackend::gelu(const Tensor& out, const Tensor& x) {
  constexpr float kSqrtTwoOverPi = 0.7978845608F;
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      for (std::int64_t i = 0; i < out.dim(1); ++i) {
        const float v = to_float(row<const T>(x, t)[i]);
        const float inner = kSqrtTwoOverPi * (v + 0.044715F * v * v * v);
        row<T>(out, t)[i] = from_float<T>(0.5F * v * (1.0F + std::tanh(inner)));
      }
    }
  });
}

void ReferenceBackend::silu_mul(const Tensor& out, const Tensor& gate_up) {
  const std::int64_t n = out.dim(1);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      const T* gate = row<const T>(gate_up, t);
      const T* up = gate + n;
      for (std::int64_t i = 0; i < n; ++i) {
        const float g = to_float(gate[i]);
        row<T>(out, t)[i] = from_float<T>(g / (1.0F + std::exp(-g)) * to_float(up[i]));
      }
    }
  });
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
