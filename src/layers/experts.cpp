#include "layers/experts.h"

#include <array>

#include "base/error.h"
#include "layers/linear.h"
#include "ops/ops.h"
#include "ops/sharding.h"

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

}  // namespace

Experts::Experts(const LoadContext& context, const std::string& prefix, const ExpertOptions& options)
    : backend_(context.backend), normalize_(options.normalize) {
  Workspace& workspace = context.workspace;
  const WeightGroup router = context.with_weight_only().take_linear(prefix + ".gate", options.num_experts,
                                                                    options.hidden_size, Quantization::kNone);
  router_ = backend_.make_linear({&router, 1}, context.dtype);
  const ExpertShape shape = {.num_experts = options.num_experts,
                             .top_k = options.top_k,
                             .hidden_size = options.hidden_size,
                             .intermediate_size = options.intermediate_size / context.comm.size(),
                             .max_num_tokens = workspace.max_tokens()};
  weights_ = backend_.make_experts(load_experts(context, prefix, options), shape, context.dtype);
  logits_ = workspace.activation("router_logits", DType::kF32, options.num_experts);
  routing_ = {workspace.activation("routed_experts", DType::kI32, options.top_k),
              workspace.activation("routed_weights", DType::kF32, options.top_k)};
  const std::size_t bytes = backend_.expert_workspace_bytes(shape, context.dtype);
  if (bytes > 0) workspace_ = workspace.scratch("experts", bytes);
  out_ = workspace.activation("block_out", context.dtype, options.hidden_size);
}

Tensor Experts::forward(const Tensor& x) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor out = out_.rows(0, tokens);
  const Tensor logits = logits_.rows(0, tokens);
  const ExpertRouting routing = {routing_.experts.rows(0, tokens), routing_.weights.rows(0, tokens)};
  ops::routing_linear(backend_, routing, x, *router_, normalize_, logits);
  ops::experts(backend_, out, x, *weights_, routing, workspace_);
  return out;
}

}  // namespace quire
