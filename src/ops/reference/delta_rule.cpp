#include <cstring>
#include <vector>

#include "ops/host_copies.h"
#include "ops/reference/rows.h"

namespace quire {
namespace {

float logistic(float x) { return 1.0F / (1.0F + std::exp(-x)); }

// ln(1 + e^x).
float softplus(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// factor * x / sqrt(x . x + 1e-6).
template <typename T>
void load_normalised(const T* x, float factor, std::vector<float>& out) {
  float squares = 1e-6F;
  for (std::size_t i = 0; i < out.size(); ++i) squares += to_float(x[i]) * to_float(x[i]);
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = to_float(x[i]) / std::sqrt(squares) * factor;
}

// One token's turn of one value head, S [k.size(), n].
struct DeltaTurn {
  float decay = 0, beta = 0;
  std::vector<float> q, k;
};

template <typename T>
void take_turn(const DeltaTurn& turn, float* state, std::int64_t n, const T* v, float* out) {
  const auto& [decay, beta, q, k] = turn;
  const auto keys = static_cast<std::int64_t>(k.size());
  for (std::int64_t j = 0; j < n; ++j) {
    float seen = 0, read = 0;
    for (std::int64_t i = 0; i < keys; ++i) {
      state[i * n + j] *= decay;
      seen += k[i] * state[i * n + j];
    }
    const float delta = beta * (to_float(v[j]) - seen);
    for (std::int64_t i = 0; i < keys; ++i) {
      state[i * n + j] += k[i] * delta;
      read += q[i] * state[i * n + j];
    }
    out[j] = read;
  }
}

}  // namespace

void Backend::sigmoid_gate(const Tensor& out, const Tensor& x, const Tensor& gate, bool add) {
  HostCopies host(*this, "sigmoid_gate");
  const Tensor to = host.update(out), from = host.read(x), by = host.read(gate);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      for (std::int64_t i = 0; i < x.dim(1); ++i) {
        T& value = row<T>(to, t)[i];
        const float gated = to_float(row<const T>(from, t)[i]) *
                            logistic(to_float(row<const T>(by, t)[gate.dim(1) == 1 ? 0 : i]));
        value = from_float<T>(add ? to_float(value) + gated : gated);
      }
    }
  });
}

void Backend::gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params) {
  HostCopies host(*this, "gated_norm");
  const Tensor to = host.update(out), from = host.read(x), by = host.read(gate);
  const NormParams near = {host.read(params.weight), {}, params.eps};
  const std::int64_t n = near.weight.dim(0);
  std::vector<float> normed(n);
  dispatch_float(out.dtype(), [&]<typename T>() {
    for (std::int64_t head = 0; head < x.dim(0) * x.dim(1) / n; ++head) {
      const std::int64_t t = head * n / x.dim(1), first = head * n % x.dim(1);
      norm_row(normed.data(), row<const float>(from, t) + first, n, near);
      for (std::int64_t i = 0; i < n; ++i) {
        const float z = to_float(row<const T>(by, t)[first + i]);
        row<T>(to, t)[first + i] = from_float<T>(normed[i] * activated(z, Activation::kSilu));
      }
    }
  });
}

void Backend::gated_delta_net(const Tensor& out, const Tensor& x, const DeltaNet& net,
                              const StateBatch& batch) {
  const std::int64_t channels = net.mixed.dim(1), values = out.dim(1);
  causal_conv(net.mixed, x.columns(0, channels), net.conv, net.conv_state, batch);
  DeltaRuleInput rule = net.rule;
  rule.qkv = net.mixed;
  rule.rates = x.columns(channels + values, 2 * net.state.dim(1));
  gated_delta_rule(net.heads, rule, net.state, batch);
  gated_norm(out, net.heads, x.columns(channels, values), net.norm);
}

void Backend::gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                               const StateBatch& batch) {
  HostCopies host(*this, "gated_delta_rule");
  const Tensor to = host.update(out), slots = host.update(state);
  DeltaRuleInput near = input;
  StateBatch spans = batch;
  host.fetch(near.qkv, near.rates, near.a_log, near.dt_bias, spans.query_starts, spans.from, spans.to);
  const std::int64_t heads = state.dim(1), key_dim = state.dim(2), n = state.dim(3);
  const std::int64_t group = heads / input.num_key_heads, keys = input.num_key_heads * key_dim;
  const auto size = static_cast<std::size_t>(key_dim * n);
  DeltaTurn turn;
  turn.q.resize(key_dim);
  turn.k.resize(turn.q.size());
  const auto run = [&]<typename T>(std::int64_t s, std::int64_t h) {
    const auto slot_of = [&](const Tensor& slot) {
      const std::int32_t index = slot.data_as<const std::int32_t>()[s];
      return index < 0 ? nullptr : row<float>(slots, index) + h * key_dim * n;
    };
    float* own = slot_of(spans.to);
    if (own == nullptr) return;
    const float* old = slot_of(spans.from);
    if (old == nullptr) std::memset(own, 0, size * sizeof(float));
    if (old != nullptr && old != own) std::memcpy(own, old, size * sizeof(float));
    const auto* starts = spans.query_starts.data_as<const std::int32_t>();
    for (std::int64_t t = starts[s]; t < starts[s + 1]; ++t) {
      const T *qkv = row<const T>(near.qkv, t), *rates = row<const T>(near.rates, t);
      load_normalised(qkv + h / group * key_dim, 1.0F / std::sqrt(static_cast<float>(key_dim)), turn.q);
      load_normalised(qkv + keys + h / group * key_dim, 1, turn.k);
      const float rate = std::exp(near.a_log.data_as<const float>()[h]);
      const float step = softplus(to_float(rates[heads + h]) + near.dt_bias.data_as<const float>()[h]);
      turn.decay = std::exp(-rate * step);
      turn.beta = logistic(to_float(rates[h]));
      take_turn(turn, own, n, qkv + 2 * keys + h * n, row<float>(to, t) + h * n);
    }
  };
  dispatch_float(input.qkv.dtype(), [&]<typename T>() {
    for (std::int64_t s = 0; s < batch.num_sequences; ++s)
      for (std::int64_t h = 0; h < heads; ++h) run.template operator()<T>(s, h);
  });
}

}  // namespace quire
