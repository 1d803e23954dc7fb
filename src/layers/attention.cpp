#include "layers/attention.h"

#include <bit>
#include <cmath>

#include "base/error.h"
#include "base/format.h"
#include "ops/communicator.h"
#include "ops/ops.h"

namespace quire {
namespace {

std::vector<ColumnShard> qkv_shards(const Communicator& comm, const std::string& prefix,
                                    const AttentionOptions& options) {
  const std::int64_t dim = options.head_dim;
  const std::int64_t kv_features = options.num_kv_heads * dim;
  const std::int64_t kv_count = local_kv_heads(options.num_kv_heads, comm) * dim;
  const std::int64_t kv_begin = shard_begin(kv_features, kv_count, comm.rank(), comm.size());
  std::vector<ColumnShard> shards = {even_shard(prefix + ".q_proj", options.num_heads * dim, comm)};
  if (options.shared_state) return shards;
  for (const char* name : {".k_proj", options.value_is_key ? ".k_proj" : ".v_proj"})
    shards.push_back({prefix + name, kv_features, kv_begin, kv_count});
  if (options.output_gate) shards.push_back(even_shard(prefix + ".q_gate", options.num_heads * dim, comm));
  return shards;
}

// The slopes of ALiBi, as its authors' code has them: a geometric series from 2^(-8 / n) on for n heads where
// n is a power of two; else that of the power below, then every other one of the power above.
std::vector<float> alibi_slopes(int num_heads) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_heads)));
  std::vector<float> slopes;
  for (int i = 0; i < num_heads; ++i) {
    const double exponent = i < power ? 8.0 * (i + 1) / power : 4.0 * (2 * (i - power) + 1) / power;
    slopes.push_back(static_cast<float>(std::pow(2.0, -exponent)));
  }
  return slopes;
}

// The scales of this rank's KV heads in a cache of E4M3, by one of the names that checkpoints have for them:
// NAME is "k" or "v". None where there are none, or another code; but then, too, they are taken.
std::vector<float> cache_scales(const LoadContext& context, const std::string& prefix,
                                const std::string& name, int num_kv_heads, CacheCode code) {
  std::vector<float> result;
  for (const std::string& suffix : {"." + name + "_scale", "." + name + "_proj." + name + "_scale",
                                    "." + name + "_proj.output_scale", ".attn." + name + "_scale"}) {
    if (!context.weights.contains(prefix + suffix)) continue;
    std::vector<float> scales = context.weights.take_vector(prefix + suffix, num_kv_heads);
    if (code != CacheCode::kE4m3 || !result.empty()) continue;
    for (const float scale : scales)
      if (!(scale > 0) || !std::isfinite(scale))
        fail("tensor {}: a scale of the KV cache is {}; it must be above 0 and finite", prefix + suffix,
             scale);
    scales.resize(num_kv_heads, scales.front());
    const int count = local_kv_heads(num_kv_heads, context.comm);
    const auto first =
        scales.begin() + shard_begin(num_kv_heads, count, context.comm.rank(), context.comm.size());
    result.assign(first, first + count);
  }
  return result;
}

}  // namespace

Attention::Attention(const LoadContext& context, const std::string& prefix, const AttentionOptions& options)
    : backend_(context.backend),
      qkv_proj_(context, qkv_shards(context.comm, prefix, options), options.hidden_size, options.qkv_bias),
      o_proj_(context, prefix + ".o_proj", options.hidden_size,
              std::int64_t{options.num_heads} * options.head_dim, options.out_bias) {
  input_.num_heads = static_cast<int>(shard_size(options.num_heads, context.comm, "attention heads"));
  input_.num_kv_heads = options.shared_state ? 0 : local_kv_heads(options.num_kv_heads, context.comm);
  input_.head_dim = options.head_dim;
  const NormOptions& norm = options.norm;
  input_.norm_eps = norm.eps;
  input_.norm_after_rotary = options.qk_norm == QkNorm::kHeadAfterRotary;
  input_.cos_sin = options.tables.cos_sin;
  input_.q_scale = options.tables.q_scale;
  Workspace& workspace = context.workspace;
  scores_.scale = options.scale;
  scores_.cap = options.score_cap;
  scores_.window = options.window;
  const StateSpec spec = {input_.num_heads, input_.num_kv_heads, options.head_dim, options.window};
  state_ = options.shared_state ? *options.shared_state : context.states.declare(spec);
  const CacheCode code = context.states.spec_of(state_).code;
  input_.k_scales = workspace.upload(cache_scales(context, prefix, "k", options.num_kv_heads, code));
  input_.v_scales = workspace.upload(cache_scales(context, prefix, "v", options.num_kv_heads, code));
  if (options.alibi) {
    const std::vector<float> slopes = alibi_slopes(options.num_heads);
    const auto first = slopes.begin() + std::ptrdiff_t{context.comm.rank()} * input_.num_heads;
    scores_.alibi_slopes = workspace.upload(std::vector<float>(first, first + input_.num_heads));
  }
  if (options.qk_norm == QkNorm::kAll) {
    const std::int64_t dim = options.head_dim;
    q_norm_.emplace(context, prefix + ".q_norm", options.num_heads * dim, input_.num_heads * dim, norm);
    k_norm_.emplace(context, prefix + ".k_norm", options.num_kv_heads * dim, input_.num_kv_heads * dim, norm);
  } else if (options.qk_norm != QkNorm::kNone) {
    const auto load = [&](const char* name) {
      return workspace.load(*context.weights.take(prefix + name, {options.head_dim}), 1, norm.weight_offset);
    };
    input_.q_norm = load(".q_norm.weight");
    if (!options.shared_state) input_.k_norm = load(".k_norm.weight");
  }
  if (options.value_norm && !options.shared_state)
    input_.v_norm = workspace.upload(std::vector<float>(options.head_dim, 1));
  if (options.sinks) scores_.sinks = load_share(context, prefix + ".sinks", options.num_heads);
  qkv_ = workspace.activation("qkv", context.dtype, qkv_proj_.out_features());
  heads_ =
      workspace.activation("attention", context.dtype, std::int64_t{input_.num_heads} * options.head_dim);
  out_ = workspace.activation("block_out", context.dtype, options.hidden_size);
}

Tensor Attention::forward(const Tensor& x, const Step& step) const {
  const std::int64_t tokens = x.dim(0);
  const Tensor heads = heads_.rows(0, tokens);
  const Tensor out = out_.rows(0, tokens);
  AttentionInput input = input_;
  const Tensor projected = qkv_.rows(0, tokens);
  input.qkv = projected.columns(0, (std::int64_t{input.num_heads} + 2 * input.num_kv_heads) * input.head_dim);
  const KvCacheLayer& cache = step.caches[state_];
  const AttentionBatch& batch = step.batches[step.lane_of[state_]];
  qkv_proj_.forward(projected, x);
  if (q_norm_) {
    q_norm_->forward(input.queries());
    k_norm_->forward(input.qkv.columns(heads.dim(1), std::int64_t{input.num_kv_heads} * input.head_dim));
  }
  ops::self_attention(backend_, heads, input, cache, batch, scores_);
  if (const std::int64_t gates = projected.dim(1) - input.qkv.dim(1); gates > 0)
    ops::sigmoid_gate(backend_, heads, heads, projected.columns(input.qkv.dim(1), gates));
  o_proj_.forward(out, heads);
  return out;
}

}  // namespace quire
