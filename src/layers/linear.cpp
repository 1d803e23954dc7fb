#include "layers/linear.h"

#include "ops/ops.h"
#include "ops/sharding.h"

namespace quire {

ColumnShard even_shard(std::string prefix, std::int64_t out_features, const Communicator& comm) {
  const std::int64_t count = shard_size(out_features, comm, "rows of " + prefix);
  return {std::move(prefix), out_features, comm.rank() * count, count};
}

ColumnParallelLinear::ColumnParallelLinear(const LoadContext& context, const std::vector<ColumnShard>& parts,
                                           std::int64_t in_features, bool has_bias)
    : backend_(context.backend) {
  std::vector<WeightGroup> weights;
  std::vector<float> bias;
  for (const ColumnShard& part : parts) {
    auto weight = context.weights.take_linear(part.prefix, part.out_features, in_features);
    weights.push_back(slice_rows(std::move(weight), part.begin, part.count));
    if (!has_bias) continue;
    const auto values =
        slice_cols(context.weights.take(part.prefix + ".bias", {part.out_features}), part.begin, part.count);
    bias.resize(bias.size() + static_cast<std::size_t>(part.count));
    values->read_rows(
        0, Tensor(&bias[bias.size() - static_cast<std::size_t>(part.count)], DType::kF32, {1, part.count}));
  }
  weights_ = backend_.make_linear(weights, context.dtype);
  if (has_bias) bias_ = context.workspace.upload(bias);
}

void ColumnParallelLinear::forward(const Tensor& out, const Tensor& x) const {
  ops::linear(backend_, out, x, *weights_, bias_);
}

void ColumnParallelLinear::forward_gated(const Tensor& out, const Tensor& x, const Tensor& gate_up,
                                         Activation activation) const {
  if (!bias_.defined()) return ops::gated_linear(backend_, out, x, *weights_, gate_up, activation);
  forward(gate_up, x);
  ops::activate_gate(backend_, out, gate_up, activation);
}

RowParallelLinear::RowParallelLinear(const LoadContext& context, const std::string& prefix,
                                     std::int64_t out_features, std::int64_t in_features, bool has_bias)
    : backend_(context.backend) {
  const std::int64_t count = shard_size(in_features, context.comm, "columns of " + prefix);
  const WeightGroup weight = slice_cols(context.weights.take_linear(prefix, out_features, in_features),
                                        context.comm.rank() * count, count);
  weights_ = backend_.make_linear({&weight, 1}, context.dtype);
  if (!has_bias) return;
  const WeightTensorPtr bias = context.weights.take(prefix + ".bias", {out_features});
  if (context.comm.rank() == 0) bias_ = context.workspace.load(*bias);
}

void RowParallelLinear::forward(const Tensor& out, const Tensor& x) const {
  ops::linear(backend_, out, x, *weights_, bias_);
}

}  // namespace quire
