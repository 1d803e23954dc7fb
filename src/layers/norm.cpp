#include "layers/norm.h"

#include "ops/ops.h"
#include "ops/sharding.h"

namespace quire {

namespace {

// (offset + the values of a checkpoint's vector) * scale.
std::vector<float> read_vector(const LoadContext& context, const std::string& name, std::int64_t size,
                               float scale, float offset) {
  const WeightTensorPtr tensor = context.weights.take(name, {size});
  std::vector<float> values(static_cast<std::size_t>(size));
  tensor->read_rows(0, Tensor(values.data(), DType::kF32, {1, size}));
  for (float& value : values) value = (value + offset) * scale;
  return values;
}

}  // namespace

Tensor load_vector(const LoadContext& context, const std::string& name, std::int64_t size, float scale,
                   float offset) {
  return context.workspace.upload(read_vector(context, name, size, scale, offset));
}

Norm::Norm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
           const NormOptions& options)
    : backend_(context.backend), comm_(context.comm), update_scale_(options.update_scale) {
  if (options.kind == NormKind::kNone) return;
  params_.weight =
      load_vector(context, prefix + ".weight", hidden_size, options.output_scale, options.weight_offset);
  if (options.kind == NormKind::kLayer) {
    params_.bias = options.bias
                       ? load_vector(context, prefix + ".bias", hidden_size, options.output_scale)
                       : context.workspace.upload(std::vector<float>(static_cast<std::size_t>(hidden_size)));
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
  const std::vector<float> all = read_vector(context, prefix + ".weight", size, 1, options.weight_offset);
  std::vector<float> weight;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    const auto first = all.begin() + shard_begin(size, columns, rank, comm_.size());
    weight.insert(weight.end(), first, first + columns);
  }
  params_ = {context.workspace.upload(weight), {}, options.eps};
  if (comm_.size() == 1) return;
  const std::string name = "heads of all ranks, " + std::to_string(columns) + " columns each";
  whole_ = context.workspace.activation(name, context.dtype, comm_.size() * columns);
  zeros_ = context.workspace.allocate(context.dtype, 1, comm_.size() * columns);
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
