#include "layers/norm.h"

#include "ops/ops.h"

namespace quire {

RmsNorm::RmsNorm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size, float eps)
    : backend_(context.backend),
      weight_(context.workspace.load(*context.weights.take(prefix + ".weight", {hidden_size}))),
      eps_(eps) {}

void RmsNorm::forward(const Tensor& out, const Tensor& residual) const {
  ops::rms_norm(backend_, out, residual, weight_, eps_);
}

void RmsNorm::forward(const Tensor& out, const Tensor& residual, const Tensor& update) const {
  ops::add_rms_norm(backend_, out, residual, update, weight_, eps_);
}

}  // namespace quire
