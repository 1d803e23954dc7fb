#include "layers/norm.h"

#include "ops/communicator.h"
#include "ops/ops.h"

namespace quire {

Norm::Norm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
           const NormOptions& options)
    : backend_(context.backend), comm_(context.comm), update_scale_(options.update_scale) {
  params_.sum_scale = options.sum_scale;
  if (options.kind == NormKind::kNone) return;
  Workspace& workspace = context.workspace;
  const auto take = [&](const char* name) { return context.weights.take(prefix + name, {hidden_size}); };
  params_.weight = workspace.load(*take(".weight"), options.output_scale, options.weight_offset);
  if (options.kind == NormKind::kLayer) {
    params_.bias = options.bias ? workspace.load(*take(".bias"), options.output_scale)
                                : workspace.upload(std::vector<float>(hidden_size));
  }
  params_.eps = options.eps;
}

void Norm::forward(const Tensor& out, const Tensor& residual, const Update& update) const {
  if (!update.values.defined()) {
    ops::norm(backend_, out, residual, params_);
  } else if (update.whole || comm_.size() == 1) {
    ops::add_norm(backend_, out, residual, update.values, update_scale_, params_);
  } else {
    comm_.all_reduce_add_norm(backend_, out, residual, update.values, update_scale_, params_);
  }
}

Update Norm::forward_sum(const Tensor& part) const {
  if (!params_.weight.defined()) return {part, false};
  comm_.all_reduce(part);
  ops::norm(backend_, part, part, params_);
  return {part, true};
}

// Where neighbours share KV heads, each is shared by as many, so the mean over the ranks is that over all
// heads.
HeadsNorm::HeadsNorm(const LoadContext& context, const std::string& prefix, std::int64_t size,
                     std::int64_t columns, const NormOptions& options)
    : backend_(context.backend), comm_(context.comm) {
  std::vector<std::int64_t> order;  // of all ranks' columns
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const std::int64_t first = shard_begin(size, columns, rank, comm_.size());
    for (std::int64_t column = 0; column < columns; ++column) order.push_back(first + column);
  }
  const WeightTensorPtr weight = pick_rows(context.weights.take(prefix + ".weight", {size}), order);
  params_ = {context.workspace.load(*weight, 1, options.weight_offset), {}, options.eps};
  if (comm_.size() == 1) return;
  const std::string name = "heads of all ranks, " + std::to_string(columns) + " columns each";
  whole_ = context.workspace.activation(name, context.dtype, comm_.size() * columns);
  zeros_ = context.workspace.allocate(context.dtype, {1, comm_.size() * columns});
}

// A sum brings the ranks' columns together, each among zeros: that is one collective for all rows.
void HeadsNorm::forward(const Tensor& x) const {
  if (comm_.size() == 1) return ops::norm(backend_, x, x, params_);
  const Tensor whole = whole_.rows(0, x.dim(0));
  const Tensor zeros(zeros_.data(), whole.dtype(), {whole.dim(0), whole.dim(1)}, whole.device());
  const Tensor own = whole.columns(comm_.rank() * x.dim(1), x.dim(1));
  ops::norm(backend_, whole, zeros.with_strides({0, 1}), {});
  ops::norm(backend_, own, x, {});
  comm_.all_reduce(whole);
  ops::norm(backend_, whole, whole, params_);
  ops::norm(backend_, x, own, {});
}

}  // namespace quire
