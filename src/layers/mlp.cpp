#include "layers/mlp.h"

#include "ops/ops.h"

namespace quire {

GatedMlp::GatedMlp(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
                   std::int64_t intermediate_size, bool has_bias)
    : gate_up_proj_(context,
                    {even_shard(prefix + ".gate_proj", intermediate_size, context.comm),
                     even_shard(prefix + ".up_proj", intermediate_size, context.comm)},
                    hidden_size, has_bias),
      down_proj_(context, prefix + ".down_proj", hidden_size, intermediate_size, has_bias),
      gate_up_(context.workspace.activation("gate_up", context.dtype, gate_up_proj_.out_features())),
      gated_(context.workspace.activation("gated", context.dtype, gate_up_proj_.out_features() / 2)),
      out_(context.workspace.activation("block_out", context.dtype, hidden_size)) {}

Tensor GatedMlp::forward(const Tensor& x) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor gated = gated_.rows(0, tokens);
  const Tensor out = out_.rows(0, tokens);
  gate_up_proj_.forward_gated(gated, x, gate_up_.rows(0, tokens));
  down_proj_.forward(out, gated);
  return out;
}

GeluMlp::GeluMlp(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
                 std::int64_t intermediate_size)
    : backend_(context.backend),
      up_proj_(context, {even_shard(prefix + ".up_proj", intermediate_size, context.comm)}, hidden_size,
               true),
      down_proj_(context, prefix + ".down_proj", hidden_size, intermediate_size, true),
      up_(context.workspace.activation("up", context.dtype, up_proj_.out_features())),
      out_(context.workspace.activation("block_out", context.dtype, hidden_size)) {}

Tensor GeluMlp::forward(const Tensor& x) const {
  const Tensor up = up_.rows(0, x.dim(0));
  const Tensor out = out_.rows(0, x.dim(0));
  up_proj_.forward(up, x);
  ops::gelu(backend_, up, up);
  down_proj_.forward(out, up);
  return out;
}

}  // namespace quire
