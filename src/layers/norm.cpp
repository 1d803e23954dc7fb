#include "layers/norm.h"

#include "ops/ops.h"

namespace quire {
namespace {

Tensor load_scaled(const LoadContext& context, const std::string& name, std::int64_t size, float scale) {
  const WeightTensorPtr tensor = context.weights.take(name, {size});
  std::vector<float> values(static_cast<std::size_t>(size));
  tensor->read_rows(0, Tensor(values.data(), DType::kF32, {1, size}));
  for (float& value : values) value *= scale;
  return context.workspace.upload(values);
}

}  // namespace

Norm::Norm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
           const NormOptions& options)
    : backend_(context.backend), comm_(context.comm), update_scale_(options.update_scale) {
  params_.weight = load_scaled(context, prefix + ".weight", hidden_size, options.output_scale);
  if (options.kind == NormKind::kLayer)
    params_.bias = load_scaled(context, prefix + ".bias", hidden_size, options.output_scale);
  params_.eps = options.eps;
}

void Norm::forward(const Tensor& out, const Tensor& residual) const {
  ops::norm(backend_, out, residual, params_);
}

void Norm::forward(const Tensor& out, const Tensor& residual, const Tensor& update) const {
  comm_.all_reduce_add_norm(backend_, out, residual, update, update_scale_, params_);
}

}  // namespace quire
