// Routed experts, one after the other: each takes the rows of the tokens that go through it, with the
// backend's own products of matrices. A token's result does not depend on the tokens beside it.
#include <array>

#include "backends/cpu/reference/reference_backend.h"

namespace quire {
namespace {

struct SeparateExperts final : ExpertWeights {
  using ExpertWeights::ExpertWeights;

  std::vector<std::unique_ptr<LinearWeights>> gate_up, down;  // one an expert
};

// The tokens of one expert, in order, and its weight for each.
struct ExpertTokens {
  std::vector<std::int32_t> tokens;
  std::vector<float> weights;
};

std::vector<ExpertTokens> group_by_expert(const ExpertRouting& routing, int num_experts) {
  std::vector<ExpertTokens> groups(num_experts);
  for (std::int64_t t = 0; t < routing.experts.dim(0); ++t) {
    const auto* experts = routing.experts.rows(t, 1).data_as<const std::int32_t>();
    const auto* weights = routing.weights.rows(t, 1).data_as<const float>();
    for (std::int64_t j = 0; j < routing.experts.dim(1); ++j) {
      ExpertTokens& group = groups.at(experts[j]);
      group.tokens.push_back(static_cast<std::int32_t>(t));
      group.weights.push_back(weights[j]);
    }
  }
  return groups;
}

// One expert's `size` elements, where there are biases.
Tensor bias_of(const Tensor& biases, std::size_t expert, std::int64_t size) {
  return biases.defined() ? biases.rows(static_cast<std::int64_t>(expert) * size, size) : biases;
}

}  // namespace

std::unique_ptr<ExpertWeights> ReferenceBackend::make_experts(std::span<const ExpertParts> experts,
                                                              const ExpertShape& shape, DType dtype) {
  auto weights = std::make_unique<SeparateExperts>(shape, expert_bytes(experts, dtype));
  for (const ExpertParts& parts : experts) {
    weights->gate_up.push_back(make_linear(std::array{parts.gate, parts.up}, dtype));
    weights->down.push_back(make_linear({&parts.down, 1}, dtype));
  }
  return weights;
}

void ReferenceBackend::experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights,
                               const ExpertRouting& routing, const Tensor&) {
  const ExpertShape& shape = weights.shape();
  const auto& matrices = dynamic_cast<const SeparateExperts&>(weights);
  const std::vector<ExpertTokens> groups = group_by_expert(routing, shape.num_experts);
  const std::int64_t hidden = shape.hidden_size;
  expert_sums_.assign(static_cast<std::size_t>(x.dim(0) * hidden), 0.0F);
  for (std::size_t e = 0; e < groups.size(); ++e) {
    const ExpertTokens& group = groups[e];
    const auto rows = std::ssize(group.tokens);
    if (rows == 0) continue;
    const std::int64_t width = 2 * hidden + 3 * shape.intermediate_size;
    expert_rows_.resize(static_cast<std::size_t>(rows * width) * size_of(x.dtype()));
    std::byte* next = expert_rows_.data();
    const auto take = [&](std::int64_t cols) {
      const Tensor tensor(next, x.dtype(), {rows, cols});
      next += tensor.bytes();
      return tensor;
    };
    const Tensor in = take(hidden), gate_up = take(2 * shape.intermediate_size);
    const Tensor gated = take(shape.intermediate_size), result = take(hidden);
    gather_rows(in, x, Tensor(const_cast<std::int32_t*>(group.tokens.data()), DType::kI32, {rows}));
    linear(gate_up, in, *matrices.gate_up[e], bias_of(weights.biases().gate_up, e, gate_up.dim(1)));
    activate_gate(gated, gate_up, shape.activation);
    linear(result, gated, *matrices.down[e], bias_of(weights.biases().down, e, hidden));
    dispatch_float(x.dtype(), [&]<typename T>() {
      for (std::int64_t i = 0; i < rows; ++i) {
        float* sums = &expert_sums_[group.tokens[i] * hidden];
        const T* values = result.data_as<const T>() + i * hidden;
        for (std::int64_t c = 0; c < hidden; ++c) sums[c] += group.weights[i] * to_float(values[c]);
      }
    });
  }
  norm(out, Tensor(expert_sums_.data(), DType::kF32, {x.dim(0), hidden}), {});  // a copy
}

}  // namespace quire
