#include "layers/gated_delta_net.h"

#include "ops/communicator.h"
#include "ops/ops.h"

namespace quire {
namespace {

std::vector<ColumnShard> delta_net_shards(const Communicator& comm, const std::string& prefix,
                                          const DeltaNetOptions& options) {
  shard_size(options.num_key_heads, comm, "key heads of " + prefix);
  std::vector<ColumnShard> shards;
  const auto add = [&](const char* name, std::int64_t rows) -> ColumnShard& {
    return shards.emplace_back(even_shard(prefix + name, rows, comm));
  };
  add(".in_proj_q", options.keys());
  add(".in_proj_k", options.keys());
  add(".in_proj_v", options.values());
  add(".in_proj_z", options.values());
  // Errors of rates would add up over the tokens.
  add(".in_proj_b", options.num_value_heads).stays_plain = true;
  add(".in_proj_a", options.num_value_heads).stays_plain = true;
  return shards;
}

// The convolution of this rank's q, k and v, f32 [width, channels].
Tensor load_conv(const LoadContext& context, const std::string& name, const DeltaNetOptions& options) {
  const std::int64_t keys = options.keys(), values = options.values();
  const WeightTensorPtr all = context.weights.take(name, {2 * keys + values, options.conv_width});
  std::vector<WeightTensorPtr> parts;
  for (const auto& [begin, size] : {std::pair(std::int64_t{0}, keys), {keys, keys}, {2 * keys, values}}) {
    const ColumnShard shard = even_shard(name, size, context.comm);
    parts.push_back(slice_rows(all, begin + shard.begin, shard.count));
  }
  return context.workspace.load_matrix(*transpose(stack_rows(std::move(parts))));
}

}  // namespace

GatedDeltaNet::GatedDeltaNet(const LoadContext& context, const std::string& prefix,
                             const DeltaNetOptions& options)
    : backend_(context.backend),
      in_proj_(context, delta_net_shards(context.comm, prefix, options), options.hidden_size),
      out_proj_(context, prefix + ".out_proj", options.hidden_size, options.values()) {
  const int ranks = context.comm.size(), heads = options.num_value_heads / ranks;
  const std::int64_t values = options.values() / ranks, channels = 2 * options.keys() / ranks + values;
  Workspace& workspace = context.workspace;
  net_.rule.a_log = load_share(context, prefix + ".A_log", options.num_value_heads);
  net_.rule.dt_bias = load_share(context, prefix + ".dt_bias", options.num_value_heads);
  net_.rule.num_key_heads = options.num_key_heads / ranks;
  const DeltaRuleShape shape = {net_.rule.num_key_heads, heads, options.key_dim, options.value_dim};
  net_.rule.workspace =
      workspace.scratch("delta_rule", backend_.delta_rule_workspace_bytes(shape, context.dtype));
  net_.conv = {load_conv(context, prefix + ".conv1d.weight", options), {}, Activation::kSilu};
  net_.norm = {workspace.load(*context.weights.take(prefix + ".norm.weight", {options.value_dim})),
               {},
               options.norm_eps};
  conv_state_ = context.states.declare_fixed({options.conv_width - 1, channels});
  state_ = context.states.declare_fixed({heads, options.key_dim, options.value_dim});
  projected_ = workspace.activation("projected", context.dtype, in_proj_.out_features());
  net_.mixed = workspace.activation("mixed", context.dtype, channels);
  net_.heads = workspace.activation("value_heads", DType::kF32, values);
  normed_ = workspace.activation("normed_heads", context.dtype, values);
  out_ = workspace.activation("block_out", context.dtype, options.hidden_size);
}

Tensor GatedDeltaNet::forward(const Tensor& x, const Step& step) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor projected = projected_.rows(0, tokens), normed = normed_.rows(0, tokens);
  const Tensor out = out_.rows(0, tokens);
  DeltaNet net = net_;
  net.conv_state = step.fixed_states[conv_state_];
  net.state = step.fixed_states[state_];
  net.mixed = net_.mixed.rows(0, tokens);
  net.heads = net_.heads.rows(0, tokens);
  in_proj_.forward(projected, x);
  ops::gated_delta_net(backend_, normed, projected, net, step.state_batch);
  out_proj_.forward(out, normed);
  return out;
}

}  // namespace quire
