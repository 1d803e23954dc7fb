#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "ops/host_copies.h"
#include "ops/reference/rows.h"

namespace quire {
namespace {

float gated(float gate, float up, Activation activation) {
  if (activation != Activation::kSwigluOai) return activated(gate, activation) * up;
  return activated(std::min(gate, kSwigluLimit), activation) *
         (std::clamp(up, -kSwigluLimit, kSwigluLimit) + 1.0F);
}

// out[t][i] = value(row t of x, i); both of one dtype.
template <typename Value>
void fill_rows(const Tensor& out, const Tensor& x, const Value& value) {
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < out.dim(0); ++t) {
      for (std::int64_t i = 0; i < out.dim(1); ++i)
        row<T>(out, t)[i] = from_float<T>(value(row<const T>(x, t), i));
    }
  });
}

}  // namespace

void Backend::norm(const Tensor& out, const Tensor& x, const NormParams& params) {
  HostCopies host(*this, "norm");
  const Tensor from = host.read(x), to = host.update(out);
  const NormParams near = {host.read(params.weight), host.read(params.bias), params.eps};
  dispatch_float(out.dtype(), [&]<typename Out>() {
    dispatch_float(x.dtype(), [&]<typename In>() {
      for (std::int64_t t = 0; t < x.dim(0); ++t)
        norm_row(row<Out>(to, t), row<const In>(from, t), x.dim(1), near);
    });
  });
}

void Backend::add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                       const NormParams& params) {
  {
    HostCopies host(*this, "add_norm");
    const Tensor sum = host.update(residual), from = host.read(x);
    dispatch_float(x.dtype(), [&]<typename T>() {
      for (std::int64_t t = 0; t < x.dim(0); ++t) {
        for (std::int64_t i = 0; i < x.dim(1); ++i) {
          float& value = row<float>(sum, t)[i];
          value = params.sum_scale * (value + scale * to_float(row<const T>(from, t)[i]));
        }
      }
    });
  }
  norm(out, residual, params);
}

void Backend::activate(const Tensor& out, const Tensor& x, Activation activation) {
  HostCopies host(*this, "activate");
  const auto value = [&](const auto* row, std::int64_t i) { return activated(to_float(row[i]), activation); };
  fill_rows(host.update(out), host.read(x), value);
}

void Backend::activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) {
  HostCopies host(*this, "activate_gate");
  const auto value = [&, n = out.dim(1)](const auto* row, std::int64_t i) {
    return gated(to_float(row[i]), to_float(row[n + i]), activation);
  };
  fill_rows(host.update(out), host.read(gate_up), value);
}

void Backend::cap(const Tensor& x, float cap) {
  HostCopies host(*this, "cap");
  const Tensor near = host.update(x);
  fill_rows(near, near,
            [&](const auto* row, std::int64_t i) { return cap * std::tanh(to_float(row[i]) / cap); });
}

void Backend::gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) {
  HostCopies host(*this, "gather_rows");
  const Tensor to = host.update(out), from = host.read(x);
  const auto* ids = host.read(rows).data_as<const std::int32_t>();
  const auto bytes = static_cast<std::size_t>(x.dim(1)) * size_of(x.dtype());
  for (std::int64_t i = 0; i < rows.dim(0); ++i)
    std::memcpy(to.rows(i, 1).data(), from.rows(ids[i], 1).data(), bytes);
}

void Backend::gather_cols(const Tensor& out, const Tensor& x, const Tensor& cols) {
  HostCopies host(*this, "gather_cols");
  const auto* ids = host.read(cols).data_as<const std::int32_t>();
  fill_rows(host.update(out), host.read(x),
            [&](const auto* row, std::int64_t i) { return to_float(row[ids[i]]); });
}

void Backend::take_sampled_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) {
  HostCopies host(*this, "take_sampled_tokens");
  auto* filled = host.update(ids).data_as<std::int32_t>();
  const auto* from = host.read(places).data_as<const std::int32_t>();
  const auto* known = host.read(tokens).data_as<const std::int32_t>();
  for (std::int64_t t = 0; t < ids.dim(0); ++t)
    if (from[t] >= 0) filled[t] = known[from[t]];
}

void Backend::route_experts(const ExpertRouting& out, const Tensor& logits, const RouterOptions& options) {
  HostCopies host(*this, "route_experts");
  const ExpertRouting to = {host.update(out.experts), host.update(out.weights)};
  const Tensor from = host.read(logits);
  const auto* bias = host.read(options.selection_bias).data_as<const float>();
  const auto* scales = host.read(options.expert_scales).data_as<const float>();
  const std::int64_t num_experts = logits.dim(1);
  const std::int64_t top_k = out.experts.dim(1);
  std::vector<std::int32_t> order(num_experts);
  for (std::int64_t t = 0; t < logits.dim(0); ++t) {
    const auto* row = from.rows(t, 1).data_as<const float>();
    auto* experts = to.experts.rows(t, 1).data_as<std::int32_t>();
    auto* weights = to.weights.rows(t, 1).data_as<float>();
    const auto sigmoid = [&](std::int32_t e) { return 1 / (1 + std::exp(-row[e])); };
    const auto compared = [&](std::int32_t e) { return bias == nullptr ? row[e] : sigmoid(e) + bias[e]; };
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + top_k, order.end(), [&](std::int32_t a, std::int32_t b) {
      return compared(a) > compared(b) || (compared(a) == compared(b) && a < b);
    });
    const auto score = [&](std::int32_t e) {
      return options.sigmoid ? sigmoid(e) : std::exp(row[e] - row[order[0]]);
    };
    float total = options.sum_offset;
    for (std::int64_t e = 0; e < (options.normalize ? top_k : num_experts); ++e) total += score(order[e]);
    if (options.sigmoid && !options.normalize) total = 1;
    for (std::int64_t j = 0; j < top_k; ++j) {
      experts[j] = order[j];
      weights[j] = options.scale * (score(experts[j]) / total);
      if (scales != nullptr) weights[j] *= scales[experts[j]];
    }
  }
}

}  // namespace quire
