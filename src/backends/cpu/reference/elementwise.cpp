#include <cmath>
#include <cstring>

#include "backends/cpu/reference/reference_backend.h"

namespace quire {
namespace {

template <typename T>
T* row(const Tensor& tensor, std::int64_t i) {
  return tensor.data_as<T>() + i * tensor.stride(0);
}

void norm_rows(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) {
  const std::int64_t n = x.dim(1);
  const auto* scale = weight.data_as<const float>();
  dispatch_float(out.dtype(), [&]<typename Out>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      const auto* values = row<const float>(x, t);
      auto* normed = row<Out>(out, t);
      float squares = 0;
      for (std::int64_t i = 0; i < n; ++i) squares += values[i] * values[i];
      const float inverse = 1.0F / std::sqrt(squares / static_cast<float>(n) + eps);
      for (std::int64_t i = 0; i < n; ++i) normed[i] = from_float<Out>(values[i] * inverse * scale[i]);
    }
  });
}

}  // namespace

void ReferenceBackend::rms_norm(const Tensor& out, const Tensor& x, const Tensor& weight, float eps) {
  norm_rows(out, x, weight, eps);
}

void ReferenceBackend::add_rms_norm(const Tensor& out, const Tensor& residual, const Tensor& x,
                                    const Tensor& weight, float eps) {
  dispatch_float(x.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      for (std::int64_t i = 0; i < x.dim(1); ++i)
        row<float>(residual, t)[i] += to_float(row<const T>(x, t)[i]);
    }
  });
  norm_rows(out, residual, weight, eps);
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

void ReferenceBackend::fill_last_tokens(const Tensor& ids, const Tensor& slots, const Tensor& last_tokens) {
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    const std::int32_t slot = slots.data_as<const std::int32_t>()[t];
    if (slot >= 0) ids.data_as<std::int32_t>()[t] = last_tokens.data_as<const std::int32_t>()[slot];
  }
}

}  // namespace quire
