#include "layers/linear.h"

#include <array>

#include "base/error.h"
#include "base/format.h"
#include "ops/communicator.h"
#include "ops/ops.h"

namespace quire {
namespace {

std::vector<WeightGroup> column_shards(const LoadContext& context, const std::vector<ColumnShard>& parts,
                                       std::int64_t in_features) {
  std::vector<WeightGroup> shards;
  for (const ColumnShard& part : parts) {
    const Quantization made = part.stays_plain ? Quantization::kNone : context.quantization;
    shards.push_back(slice_rows(context.take_linear(part.prefix, part.out_features, in_features, made),
                                part.begin, part.count));
  }
  return shards;
}

}  // namespace

ColumnShard even_shard(std::string prefix, std::int64_t out_features, const Communicator& comm) {
  const std::int64_t count = shard_size(out_features, comm, "rows of " + prefix);
  return {std::move(prefix), out_features, comm.rank() * count, count};
}

Tensor load_share(const LoadContext& context, const std::string& name, std::int64_t size) {
  const ColumnShard share = even_shard(name, size, context.comm);
  return context.workspace.load(*slice_cols(context.weights.take(name, {size}), share.begin, share.count));
}

std::vector<float> load_biases(const LoadContext& context, const std::vector<ColumnShard>& parts,
                               bool of_sum) {
  std::vector<float> biases;
  for (const ColumnShard& part : parts) {
    const auto all = read_values<float>(*context.weights.take(part.prefix + ".bias", {part.out_features}));
    biases.insert(biases.end(), all.begin() + part.begin, all.begin() + part.begin + part.count);
  }
  return of_sum && context.comm.rank() != 0 ? std::vector<float>() : biases;
}

WeightGroup take_row_shard(const LoadContext& context, const std::string& prefix, std::int64_t out_features,
                           std::int64_t in_features) {
  const std::int64_t count = shard_size(in_features, context.comm, "columns of " + prefix);
  const WeightGroup whole = context.take_linear(prefix, out_features, in_features);
  try {
    return slice_cols(whole, context.comm.rank() * count, count);
  } catch (const Error&) {
    if (context.quantization == Quantization::kNone) throw;
    fail(
        "quantization {} makes groups of {} columns, which {} ranks would cut: each has {} of the {} columns "
        "of {}; take fewer ranks, or fp8 or int8",
        to_string(context.quantization), whole.format.block_cols, context.comm.size(), count, in_features,
        prefix);
  }
}

Product::Product(const LoadContext& context, std::span<const WeightGroup> parts,
                 const std::vector<float>& bias)
    : backend_(context.backend) {
  while (!parts.empty()) {
    const std::span<const WeightGroup> alike = parts.first(num_alike(parts));
    parts = parts.subspan(alike.size());
    Matrix matrix = {backend_.make_linear(alike, context.dtype), {}, {}};
    const std::int64_t rows = matrix.weights->out_features();
    if (!bias.empty()) {
      const auto first = bias.begin() + out_features_;
      matrix.bias = context.workspace.upload(std::vector<float>(first, first + rows));
    }
    const std::vector<std::int32_t> order = column_order(alike.front());
    if (!order.empty()) {
      matrix.order = context.workspace.upload(order);
      ordered_ = context.workspace.activation(format_text("ordered_{}", order.size()), context.dtype,
                                              std::ssize(order));
    }
    out_features_ += rows;
    matrices_.push_back(std::move(matrix));
  }
}

Tensor Product::ordered(const Matrix& matrix, const Tensor& x) const {
  if (!matrix.order.defined()) return x;
  const Tensor columns = ordered_.rows(0, x.dim(0));
  ops::gather_cols(backend_, columns, x, matrix.order);
  return columns;
}

void Product::forward(const Tensor& out, const Tensor& x) const {
  std::int64_t begin = 0;
  for (const Matrix& matrix : matrices_) {
    const std::int64_t count = matrix.weights->out_features();
    ops::linear(backend_, out.columns(begin, count), ordered(matrix, x), *matrix.weights, matrix.bias);
    begin += count;
  }
}

void Product::forward_gated(const Tensor& out, const Tensor& x, const Tensor& gate_up,
                            Activation activation) const {
  const Matrix& first = matrices_.front();
  if (matrices_.size() == 1 && !first.bias.defined())
    return ops::gated_linear(backend_, out, ordered(first, x), *first.weights, gate_up, activation);
  forward(gate_up, x);
  ops::activate_gate(backend_, out, gate_up, activation);
}

ColumnParallelLinear::ColumnParallelLinear(const LoadContext& context, const std::vector<ColumnShard>& parts,
                                           std::int64_t in_features, bool has_bias)
    : Product(context, column_shards(context, parts, in_features),
              has_bias ? load_biases(context, parts) : std::vector<float>()) {}

RowParallelLinear::RowParallelLinear(const LoadContext& context, const std::string& prefix,
                                     std::int64_t out_features, std::int64_t in_features, bool has_bias)
    : Product(context, std::array{take_row_shard(context, prefix, out_features, in_features)},
              has_bias ? load_biases(context, {{prefix, out_features, 0, out_features}}, /*of_sum=*/true)
                       : std::vector<float>()) {}

}  // namespace quire
