#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/host_copies.h"

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
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
  }
  return x;
}

// One row; RMSNorm, with a bias LayerNorm, without a weight a copy.
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

}  // namespace

void Ops::norm(const Tensor& out, const Tensor& x, const NormParams& params) {
  HostCopies host(*this, "norm");
  const Tensor from = host.read(x), to = host.update(out);
  const NormParams near = {host.read(params.weight), host.read(params.bias), params.eps};
  dispatch_float(out.dtype(), [&]<typename Out>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      if (x.dtype() == DType::kF32) {
        norm_row(row<Out>(to, t), row<const float>(from, t), x.dim(1), near);
      } else {
        norm_row(row<Out>(to, t), row<const Out>(from, t), x.dim(1), near);
      }
    }
  });
}

void Ops::add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                   const NormParams& params) {
  {
    HostCopies host(*this, "add_norm");
    const Tensor sum = host.update(residual), from = host.read(x);
    dispatch_float(x.dtype(), [&]<typename T>() {
      for (std::int64_t t = 0; t < x.dim(0); ++t) {
        for (std::int64_t i = 0; i < x.dim(1); ++i)
          row<float>(sum, t)[i] += scale * to_float(row<const T>(from, t)[i]);
      }
    });
  }
  norm(out, residual, params);
}

void Ops::activate(const Tensor& out, const Tensor& x, Activation activation) {
  HostCopies host(*this, "activate");
  const Tensor from = host.read(x), to = host.update(out);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      for (std::int64_t i = 0; i < out.dim(1); ++i)
        row<T>(to, t)[i] = from_float<T>(activated(to_float(row<const T>(from, t)[i]), activation));
    }
  });
}

void Ops::activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) {
  HostCopies host(*this, "activate_gate");
  const Tensor from = host.read(gate_up), to = host.update(out);
  const std::int64_t n = out.dim(1);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      const T* gate = row<const T>(from, t);
      for (std::int64_t i = 0; i < n; ++i)
        row<T>(to, t)[i] = from_float<T>(activated(to_float(gate[i]), activation) * to_float(gate[n + i]));
    }
  });
}

void Ops::cap(const Tensor& x, float cap) {
  HostCopies host(*this, "cap");
  const Tensor near = host.update(x);
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t i = 0; i < x.dim(1); ++i) {
      float& value = row<float>(near, t)[i];
      value = cap * std::tanh(value / cap);
    }
  }
}

void Ops::gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) {
  HostCopies host(*this, "gather_rows");
  const Tensor to = host.update(out), from = host.read(x);
  const auto* ids = host.read(rows).data_as<const std::int32_t>();
  const auto bytes = static_cast<std::size_t>(x.dim(1)) * size_of(x.dtype());
  for (std::int64_t i = 0; i < rows.dim(0); ++i)
    std::memcpy(to.rows(i, 1).data(), from.rows(ids[i], 1).data(), bytes);
}

void Ops::gather_cols(const Tensor& out, const Tensor& x, const Tensor& cols) {
  HostCopies host(*this, "gather_cols");
  const Tensor to = host.update(out), from = host.read(x);
  const auto* ids = host.read(cols).data_as<const std::int32_t>();
  dispatch_float(x.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      for (std::int64_t i = 0; i < cols.dim(0); ++i) row<T>(to, t)[i] = row<const T>(from, t)[ids[i]];
    }
  });
}

void Ops::take_sampled_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) {
  HostCopies host(*this, "take_sampled_tokens");
  auto* filled = host.update(ids).data_as<std::int32_t>();
  const auto* from = host.read(places).data_as<const std::int32_t>();
  const auto* known = host.read(tokens).data_as<const std::int32_t>();
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    if (from[t] >= 0) filled[t] = known[from[t]];
  }
}

void Ops::route_experts(const ExpertRouting& out, const Tensor& logits, bool normalize) {
  HostCopies host(*this, "route_experts");
  const ExpertRouting to = {host.update(out.experts), host.update(out.weights)};
  const Tensor from = host.read(logits);
  const std::int64_t num_experts = logits.dim(1);
  const std::int64_t top_k = out.experts.dim(1);
  std::vector<std::int32_t> order(static_cast<std::size_t>(num_experts));
  for (std::int64_t t = 0; t < logits.dim(0); ++t) {
    const auto* row = from.rows(t, 1).data_as<const float>();
    auto* experts = to.experts.rows(t, 1).data_as<std::int32_t>();
    auto* weights = to.weights.rows(t, 1).data_as<float>();
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](std::int32_t a, std::int32_t b) {
      return row[a] > row[b] || (row[a] == row[b] && a < b);
    });
    const float top = row[order[0]];
    float total = 0;
    for (std::int64_t e = 0; e < (normalize ? top_k : num_experts); ++e)
      total += std::exp(row[order[static_cast<std::size_t>(e)]] - top);
    for (std::int64_t j = 0; j < top_k; ++j) {
      experts[j] = order[static_cast<std::size_t>(j)];
      weights[j] = std::exp(row[experts[j]] - top) / total;
    }
  }
}

}  // namespace quire
