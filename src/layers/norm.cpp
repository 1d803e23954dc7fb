#include "layers/norm.h"

#include "ops/ops.h"

namespace quire {

Tensor load_vector(const LoadContext& context, const std::string& name, std::int64_t size, float scale,
                   float offset) {
  const WeightTensorPtr tensor = context.weights.take(name, {size});
  std::vector<float> values(static_cast<std::size_t>(size));
  tensor->read_rows(0, Tensor(values.data(), DType::kF32, {1, size}));
  for (float& value : values) value = (value + offset) * scale;
  return context.workspace.upload(values);
}

Norm::Norm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
           const NormOptions& options)
    : backend_(context.backend), comm_(context.comm), update_scale_(options.update_scale) {
  params_.weight =
      load_vector(context, prefix + ".weight", hidden_size, options.output_scale, options.weight_offset);
  if (options.kind == NormKind::kLayer)
    params_.bias = load_vector(context, prefix + ".bias", hidden_size, options.output_scale);
  params_.eps = options.eps;
}

void Norm::forward(const Tensor& out, const Tensor& residual) const {
  ops::norm(backend_, out, residual, params_);
}

void Norm::forward(const Tensor& out, const Tensor& residual, const Tensor& update) const {
  comm_.all_reduce_add_norm(backend_, out, residual, update, update_scale_, params_);
}

void Norm::forward_whole(const Tensor& out, const Tensor& residual, const Tensor& update) const {
  ops::add_norm(backend_, out, residual, update, update_scale_, params_);
}

void Norm::forward_sum(const Tensor& update) const {
  comm_.all_reduce(update);
  ops::norm(backend_, update, update, params_);
}

}  // namespace quire
