#include "layers/short_conv.h"

#include "ops/ops.h"

namespace quire {
namespace {

// This rank's channels of each third of the file's projection, which has b, c, x.
std::vector<ColumnShard> thirds(const LoadContext& context, const std::string& prefix,
                                std::int64_t channels) {
  std::vector<ColumnShard> shards;
  for (const std::int64_t third : {0, 2, 1}) {
    ColumnShard shard = even_shard(prefix + ".in_proj", channels, context.comm);
    shard.out_features = 3 * channels;
    shard.begin += third * channels;
    shards.push_back(std::move(shard));
  }
  return shards;
}

// The convolution of this rank's channels.
ConvParams load_short_conv(const LoadContext& context, const std::string& prefix,
                           const ShortConvOptions& options) {
  const ColumnShard channels = even_shard(prefix, options.hidden_size, context.comm);
  const WeightTensorPtr all = context.weights.take(prefix + ".weight", {options.hidden_size, options.width});
  ConvParams params = {
      .weight = context.workspace.load_matrix(*transpose(slice_rows(all, channels.begin, channels.count))),
      .bias = {}};
  if (options.bias) params.bias = load_share(context, prefix + ".bias", options.hidden_size);
  return params;
}

}  // namespace

ShortConv::ShortConv(const LoadContext& context, const std::string& prefix, const ShortConvOptions& options)
    : backend_(context.backend),
      in_proj_(context, thirds(context, prefix, options.hidden_size), options.hidden_size, options.bias),
      out_proj_(context, prefix + ".out_proj", options.hidden_size, options.hidden_size, options.bias),
      conv_(load_short_conv(context, prefix + ".conv", options)),
      state_(context.states.declare_fixed({options.width - 1, conv_.weight.dim(1)})),
      bxc_(context.workspace.activation("conv_in", context.dtype, in_proj_.out_features())),
      gated_(context.workspace.activation("conv_gated", context.dtype, conv_.weight.dim(1))),
      out_(context.workspace.activation("block_out", context.dtype, options.hidden_size)) {}

Tensor ShortConv::forward(const Tensor& x, const Step& step) const {
  const std::int64_t tokens = x.dim(0), channels = gated_.dim(1);
  const Tensor bxc = bxc_.rows(0, tokens), gated = gated_.rows(0, tokens), out = out_.rows(0, tokens);
  in_proj_.forward(bxc, x);
  ops::activate_gate(backend_, gated, bxc.columns(0, 2 * channels), Activation::kIdentity);
  ops::causal_conv(backend_, bxc.columns(channels, channels), gated, conv_, step.fixed_states[state_],
                   step.state_batch);
  ops::activate_gate(backend_, gated, bxc.columns(channels, 2 * channels), Activation::kIdentity);
  out_proj_.forward(out, gated);
  return out;
}

}  // namespace quire
