#include "layers/experts.h"

#include <array>

#include "base/error.h"
#include "layers/linear.h"
#include "ops/communicator.h"
#include "ops/ops.h"

namespace quire {
namespace {

// Gate and up must be one matrix.
void check_alike(const ExpertParts& parts) {
  if (num_alike(std::array{parts.gate, parts.up}) < 2)
    fail("tensors {} and {} of one expert are quantised in different formats, which is not supported",
         parts.gate.name(), parts.up.name());
  for (const WeightGroup* group : {&parts.gate, &parts.down})
    if (group->format.is_ordered)
      fail("tensor {}: its columns stand in an order of their own (desc_act), which experts do not support",
           group->name());
}

std::vector<ExpertParts> load_experts(const LoadContext& context, const std::string& prefix,
                                      const ExpertOptions& options) {
  const LoadContext weights = context.with_weight_only();
  const std::int64_t hidden = options.hidden_size, wide = options.intermediate_size;
  const std::int64_t count = shard_size(wide, context.comm, "rows of an expert in " + prefix);
  const std::int64_t begin = context.comm.rank() * count;
  std::vector<ExpertParts> experts;
  for (int i = 0; i < options.num_experts; ++i) {
    const std::string name = prefix + ".experts." + std::to_string(i);
    experts.push_back({slice_rows(weights.take_linear(name + ".gate_proj", wide, hidden), begin, count),
                       slice_rows(weights.take_linear(name + ".up_proj", wide, hidden), begin, count),
                       take_row_shard(weights, name + ".down_proj", hidden, wide)});
    check_alike(experts.back());
  }
  return experts;
}

ExpertBiases load_expert_biases(const LoadContext& context, const std::string& prefix,
                                const ExpertOptions& options) {
  std::vector<ColumnShard> gate_up, down;
  for (int i = 0; i < options.num_experts; ++i) {
    const std::string name = prefix + ".experts." + std::to_string(i);
    gate_up.push_back(even_shard(name + ".gate_proj", options.intermediate_size, context.comm));
    gate_up.push_back(even_shard(name + ".up_proj", options.intermediate_size, context.comm));
    down.push_back({name + ".down_proj", options.hidden_size, 0, options.hidden_size});
  }
  return {context.workspace.upload(load_biases(context, gate_up)),
          context.workspace.upload(load_biases(context, down, /*of_sum=*/true))};
}

}  // namespace

Experts::Experts(const LoadContext& context, const std::string& prefix, const ExpertOptions& options)
    : backend_(context.backend), options_(options.router) {
  Workspace& workspace = context.workspace;
  const WeightGroup router = context.with_weight_only().take_linear(prefix + ".gate", options.num_experts,
                                                                    options.hidden_size, Quantization::kNone);
  router_ = backend_.make_linear({&router, 1}, context.dtype);
  const ExpertShape shape = {.num_experts = options.num_experts,
                             .top_k = options.top_k,
                             .hidden_size = options.hidden_size,
                             .intermediate_size = options.intermediate_size / context.comm.size(),
                             .max_num_tokens = workspace.max_tokens(),
                             .activation = options.activation};
  if (options.selection_bias)
    options_.selection_bias = workspace.load(
        *context.weights.take(prefix + ".gate.e_score_correction_bias", {options.num_experts}));
  if (options.scaled)
    options_.expert_scales =
        workspace.load(*context.weights.take(prefix + ".gate.scales", {options.num_experts}));
  weights_ = backend_.make_experts(load_experts(context, prefix, options), shape, context.dtype);
  if (options.bias) {
    router_bias_ = workspace.upload(
        load_biases(context, {{prefix + ".gate", options.num_experts, 0, options.num_experts}}));
    weights_->set_biases(load_expert_biases(context, prefix, options));
  }
  logits_ = workspace.activation("router_logits", DType::kF32, options.num_experts);
  routing_ = {workspace.activation("routed_experts", DType::kI32, options.top_k),
              workspace.activation("routed_weights", DType::kF32, options.top_k)};
  workspace_ = workspace.scratch("experts", backend_.expert_workspace_bytes(shape, context.dtype));
  out_ = workspace.activation(options.shared_size > 0 ? "experts_out" : "block_out", context.dtype,
                              options.hidden_size);
  if (options.shared_size == 0) return;
  shared_.emplace(context, prefix + ".shared_expert",
                  MlpOptions{.hidden_size = options.hidden_size, .intermediate_size = options.shared_size});
  const WeightGroup gate = context.with_weight_only().take_linear(prefix + ".shared_expert_gate", 1,
                                                                  options.hidden_size, Quantization::kNone);
  shared_gate_.emplace(context, std::span(&gate, 1), std::vector<float>());
  gate_ = workspace.activation("expert_gate", context.dtype, 1);
}

Tensor Experts::forward(const Tensor& x, const Tensor& routed_by) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor out = out_.rows(0, tokens);
  const Tensor logits = logits_.rows(0, tokens);
  const ExpertRouting routing = {routing_.experts.rows(0, tokens), routing_.weights.rows(0, tokens)};
  if (router_bias_.defined()) {
    ops::linear(backend_, logits, routed_by, *router_, router_bias_);
    ops::route_experts(backend_, routing, logits, options_);
  } else {
    ops::routing_linear(backend_, routing, routed_by, *router_, options_, logits);
  }
  ops::experts(backend_, out, x, *weights_, routing, workspace_);
  if (shared_) {
    const Tensor gate = gate_.rows(0, tokens);
    shared_gate_->forward(gate, x);
    ops::sigmoid_gate(backend_, out, shared_->forward(x), gate, /*add=*/true);
  }
  return out;
}

}  // namespace quire
