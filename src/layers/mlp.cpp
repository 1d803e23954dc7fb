#include "layers/mlp.h"

#include "ops/ops.h"

namespace quire {
namespace {

std::vector<ColumnShard> input_shards(const LoadContext& context, const std::string& prefix,
                                      const MlpOptions& options) {
  std::vector<ColumnShard> shards;
  if (options.gated)
    shards.push_back(even_shard(prefix + ".gate_proj", options.intermediate_size, context.comm));
  shards.push_back(even_shard(prefix + ".up_proj", options.intermediate_size, context.comm));
  return shards;
}

}  // namespace

Mlp::Mlp(const LoadContext& context, const std::string& prefix, const MlpOptions& options)
    : backend_(context.backend),
      options_(options),
      up_proj_(context, input_shards(context, prefix, options), options.hidden_size, options.bias),
      down_proj_(context, prefix + ".down_proj", options.hidden_size, options.intermediate_size,
                 options.bias) {
  const std::int64_t width = up_proj_.out_features();
  if (options.gated) gate_up_ = context.workspace.activation("gate_up", context.dtype, width);
  activated_ = context.workspace.activation("activated", context.dtype, options.gated ? width / 2 : width);
  out_ = options.wide_result
             ? context.workspace.activation("wide_block_out", DType::kF32, options.hidden_size)
             : context.workspace.activation("block_out", context.dtype, options.hidden_size);
}

Tensor Mlp::forward(const Tensor& x) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor activated = activated_.rows(0, tokens);
  const Tensor out = out_.rows(0, tokens);
  if (options_.gated) {
    up_proj_.forward_gated(activated, x, gate_up_.rows(0, tokens), options_.activation);
  } else {
    up_proj_.forward(activated, x);
    ops::activate(backend_, activated, activated, options_.activation);
  }
  down_proj_.forward(out, activated);
  return out;
}

}  // namespace quire
