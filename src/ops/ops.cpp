#include "ops/ops.h"

#include <algorithm>
#include <type_traits>

#include "base/error.h"

namespace quire::ops {
namespace {

// Has the backend do an op of this name.
template <typename Result, typename... Params>
Result run(Backend& backend, const char* name, Result (Backend::*op)(Params...),
           const std::type_identity_t<Params>&... params) {
  backend.begin_op(name);
  return (backend.*op)(params...);
}

// A tensor of this dtype and shape, on the backend's device, rows dense.
void check(const Backend& backend, const Tensor& tensor, DType dtype,
           std::initializer_list<std::int64_t> shape, const char* what) {
  QUIRE_CHECK(tensor.defined() && tensor.dtype() == dtype && tensor.device() == backend.device() &&
                  std::ranges::equal(tensor.shape(), shape),
              "{} is {}", what, tensor.describe());
  QUIRE_CHECK(tensor.num_dims() == 0 || tensor.stride(tensor.num_dims() - 1) == 1, "{} has no dense rows",
              what);
}

// A vector of n f32, where there is one.
void check_optional(const Backend& backend, const Tensor& vector, std::int64_t n, const char* what) {
  if (vector.defined()) check(backend, vector, DType::kF32, {n}, what);
}

void check_cache(const Backend& backend, const KvCacheLayer& cache, DType dtype) {
  const Tensor& k = cache.keys;
  const bool has_codes = cache.code != CacheCode::kNone;
  const DType stored = has_codes ? DType::kU8 : dtype;
  check(backend, k, stored, {k.dim(0), k.dim(1), k.dim(2), k.dim(3)}, "keys");
  check(backend, cache.values, stored, {k.dim(0), k.dim(1), k.dim(2), k.dim(3)}, "values");
  if (!has_codes) return;
  for (const Tensor& scales : {cache.key_scales, cache.value_scales})
    check(backend, scales, DType::kF32, {k.dim(0), k.dim(1), k.dim(2), 1}, "scales of the cache");
}

void check_batch(const Backend& backend, const AttentionBatch& batch) {
  const std::int64_t sequences = batch.num_sequences;
  const std::int64_t tokens = batch.num_tokens;
  check(backend, batch.query_starts, DType::kI32, {sequences + 1}, "query_starts");
  check(backend, batch.seq_lens, DType::kI32, {sequences}, "seq_lens");
  check(backend, batch.table_rows, DType::kI32, {sequences}, "table_rows");
  check(backend, batch.positions, DType::kI32, {tokens}, "positions");
  check(backend, batch.slot_mapping, DType::kI32, {tokens}, "slot_mapping");
  const Tensor& tables = batch.block_tables;
  check(backend, tables, DType::kI32, {tables.dim(0), tables.dim(1)}, "block_tables");
}

// state: f32 [slots, …], of which each slot is dense.
void check_states(const Backend& backend, const Tensor& state, const StateBatch& batch) {
  check(backend, batch.query_starts, DType::kI32, {batch.num_sequences + std::int64_t{1}}, "query_starts");
  check(backend, batch.from, DType::kI32, {batch.num_sequences}, "from");
  check(backend, batch.to, DType::kI32, {batch.num_sequences}, "to");
  QUIRE_CHECK(state.defined() && state.dtype() == DType::kF32 && state.device() == backend.device() &&
                  state.rows(0, 1).contiguous(),
              "the state is {}", state.describe());
}

void check_norm(const Backend& backend, const NormParams& params, std::int64_t n) {
  check_optional(backend, params.weight, n, "weight");
  QUIRE_CHECK(params.weight.defined() || !params.bias.defined(), "a bias without a weight");
  check_optional(backend, params.bias, n, "bias");
}

void check_conv(const Backend& backend, const Tensor& out, const Tensor& x, const ConvParams& params,
                const Tensor& state, const StateBatch& batch) {
  const std::int64_t channels = x.dim(1), width = params.weight.dim(0);
  check(backend, x, x.dtype(), {batch.num_tokens, channels}, "x");
  check(backend, out, x.dtype(), {batch.num_tokens, channels}, "out");
  check(backend, params.weight, DType::kF32, {width, channels}, "weight");
  check_optional(backend, params.bias, channels, "bias");
  check_states(backend, state, batch);
  check(backend, state, DType::kF32, {state.dim(0), width - 1, channels}, "state");
}

// logits [tokens, num_experts] and what becomes of them.
void check_routing(const Backend& backend, const ExpertRouting& out, const Tensor& logits,
                   std::int64_t tokens, const RouterOptions& options) {
  const std::int64_t top_k = out.experts.dim(1);
  check(backend, logits, DType::kF32, {tokens, logits.dim(1)}, "logits");
  check(backend, out.experts, DType::kI32, {tokens, top_k}, "experts");
  check(backend, out.weights, DType::kF32, {tokens, top_k}, "weights");
  check_optional(backend, options.expert_scales, logits.dim(1), "scales");
  QUIRE_CHECK(top_k >= 1 && top_k <= logits.dim(1), "{} of {} experts", top_k, logits.dim(1));
  const Tensor& bias = options.selection_bias;
  check_optional(backend, bias, logits.dim(1), "selection_bias");
  QUIRE_CHECK(options.sigmoid || (!bias.defined() && options.sum_offset == 0), "a bias of a softmax");
}

}  // namespace

void linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
            const Tensor& bias) {
  const std::int64_t tokens = x.dim(0);
  check(backend, x, x.dtype(), {tokens, weights.in_features()}, "x");
  QUIRE_CHECK(out.dtype() == x.dtype() || out.dtype() == DType::kF32, "out is {}", out.describe());
  check(backend, out, out.dtype(), {tokens, weights.out_features()}, "out");
  check_optional(backend, bias, weights.out_features(), "bias");
  run(backend, "linear", &Backend::linear, out, x, weights, bias);
}

void embedding(Backend& backend, const Tensor& out, const LinearWeights& weights, const Tensor& ids,
               std::int64_t first_row, float scale) {
  check(backend, ids, DType::kI32, {ids.dim(0)}, "ids");
  check(backend, out, DType::kF32, {ids.dim(0), weights.in_features()}, "out");
  QUIRE_CHECK(first_row >= 0);
  run(backend, "embedding", &Backend::embedding, out, weights, ids, first_row, scale);
}

void norm(Backend& backend, const Tensor& out, const Tensor& x, const NormParams& params) {
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  QUIRE_CHECK(x.dtype() == DType::kF32 || x.dtype() == out.dtype(), "x is {}", x.describe());
  check(backend, out, out.dtype(), {x.dim(0), x.dim(1)}, "out");
  check_norm(backend, params, x.dim(1));
  run(backend, "norm", &Backend::norm, out, x, params);
}

void add_norm(Backend& backend, const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
              const NormParams& params) {
  check(backend, residual, DType::kF32, {x.dim(0), x.dim(1)}, "residual");
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  check(backend, out, out.dtype(), {x.dim(0), x.dim(1)}, "out");
  check_norm(backend, params, x.dim(1));
  run(backend, "add_norm", &Backend::add_norm, out, residual, x, scale, params);
}

std::shared_ptr<const AttentionPlan> plan_attention(Backend& backend, const AttentionBatch& batch,
                                                    const AttentionShape& shape) {
  check_batch(backend, batch);
  QUIRE_CHECK(batch.num_sequences <= shape.max_num_seqs && batch.num_tokens <= shape.max_num_tokens &&
                  batch.max_seq_len <= shape.max_seq_len,
              "{} sequences, {} tokens, {} positions", batch.num_sequences, batch.num_tokens,
              batch.max_seq_len);
  const auto bytes = static_cast<std::int64_t>(backend.attention_workspace_bytes(shape));
  if (bytes > 0) check(backend, batch.workspace, DType::kU8, {bytes}, "workspace");
  return run(backend, "plan_attention", &Backend::plan_attention, batch, shape);
}

void self_attention(Backend& backend, const Tensor& out, const AttentionInput& input,
                    const KvCacheLayer& cache, const AttentionBatch& batch, const AttentionScores& scores) {
  check_batch(backend, batch);
  const std::int64_t width =
      (std::int64_t{input.num_heads} + 2 * std::int64_t{input.num_kv_heads}) * input.head_dim;
  check(backend, input.qkv, input.qkv.dtype(), {batch.num_tokens, width}, "qkv");
  check(backend, out, input.qkv.dtype(), {batch.num_tokens, input.queries().dim(1)}, "out");
  check_cache(backend, cache, input.qkv.dtype());
  const std::int64_t kv_heads = cache.keys.dim(1);
  const bool stores = input.num_kv_heads > 0;
  QUIRE_CHECK((!stores || kv_heads == input.num_kv_heads) && input.num_heads % kv_heads == 0 &&
                  cache.keys.dim(3) == input.head_dim,
              "{} heads, keys are {}", input.num_heads, cache.keys.describe());
  check_optional(backend, input.q_norm, input.head_dim, "q_norm");
  check_optional(backend, input.k_norm, input.head_dim, "k_norm");
  check_optional(backend, input.v_norm, input.head_dim, "v_norm");
  if (const Tensor& table = input.cos_sin; table.defined()) {
    check(backend, table, DType::kF32, {table.dim(0), table.dim(1)}, "cos_sin");
    QUIRE_CHECK(table.dim(1) % 2 == 0 && table.dim(1) <= input.head_dim, "cos_sin is {}", table.describe());
    QUIRE_CHECK(batch.max_seq_len <= table.dim(0), "{} positions in a table of {}", batch.max_seq_len,
                table.dim(0));
  }
  if (const Tensor& scale = input.q_scale; scale.defined()) {
    check(backend, scale, DType::kF32, {scale.dim(0)}, "q_scale");
    QUIRE_CHECK(batch.max_seq_len <= scale.dim(0), "{} positions, {} scales", batch.max_seq_len,
                scale.dim(0));
  }
  check_optional(backend, scores.alibi_slopes, input.num_heads, "alibi_slopes");
  check_optional(backend, scores.sinks, input.num_heads, "sinks");
  run(backend, "self_attention", &Backend::self_attention, out, input, cache, batch, scores);
}

void causal_conv(Backend& backend, const Tensor& out, const Tensor& x, const ConvParams& params,
                 const Tensor& state, const StateBatch& batch) {
  check_conv(backend, out, x, params, state, batch);
  run(backend, "causal_conv", &Backend::causal_conv, out, x, params, state, batch);
}

void activate(Backend& backend, const Tensor& out, const Tensor& x, Activation activation) {
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  check(backend, out, x.dtype(), {x.dim(0), x.dim(1)}, "out");
  run(backend, "activate", &Backend::activate, out, x, activation);
}

void activate_gate(Backend& backend, const Tensor& out, const Tensor& gate_up, Activation activation) {
  check(backend, out, gate_up.dtype(), {gate_up.dim(0), out.dim(1)}, "out");
  check(backend, gate_up, gate_up.dtype(), {gate_up.dim(0), 2 * out.dim(1)}, "gate_up");
  run(backend, "activate_gate", &Backend::activate_gate, out, gate_up, activation);
}

void gated_linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
                  const Tensor& gate_up, Activation activation) {
  const std::int64_t tokens = x.dim(0);
  check(backend, x, x.dtype(), {tokens, weights.in_features()}, "x");
  check(backend, gate_up, x.dtype(), {tokens, weights.out_features()}, "gate_up");
  QUIRE_CHECK(weights.out_features() % 2 == 0, "{} rows of gate and up", weights.out_features());
  check(backend, out, x.dtype(), {tokens, weights.out_features() / 2}, "out");
  run(backend, "gated_linear", &Backend::gated_linear, out, x, weights, gate_up, activation);
}

void sigmoid_gate(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& gate, bool add) {
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  check(backend, out, x.dtype(), {x.dim(0), x.dim(1)}, "out");
  check(backend, gate, x.dtype(), {x.dim(0), gate.dim(1) == 1 ? 1 : x.dim(1)}, "gate");
  run(backend, "sigmoid_gate", &Backend::sigmoid_gate, out, x, gate, add);
}

void gated_delta_net(Backend& backend, const Tensor& out, const Tensor& x, const DeltaNet& net,
                     const StateBatch& batch) {
  const DeltaRuleInput& rule = net.rule;
  const std::int64_t tokens = batch.num_tokens, channels = net.mixed.dim(1);
  const std::int64_t heads = net.state.dim(1), key_dim = net.state.dim(2), value_dim = net.state.dim(3);
  const std::int64_t values = heads * value_dim;
  check(backend, x, out.dtype(), {tokens, channels + values + 2 * heads}, "x");
  check(backend, out, out.dtype(), {tokens, values}, "out");
  check_conv(backend, net.mixed, x.columns(0, channels), net.conv, net.conv_state, batch);
  check_states(backend, net.state, batch);
  QUIRE_CHECK(rule.num_key_heads > 0 && heads % rule.num_key_heads == 0 && key_dim <= kMaxDeltaKeyDim,
              "state is {}, of {} key heads", net.state.describe(), rule.num_key_heads);
  check(backend, net.mixed, out.dtype(), {tokens, 2 * rule.num_key_heads * key_dim + values}, "mixed");
  check(backend, net.heads, DType::kF32, {tokens, values}, "heads");
  check(backend, rule.a_log, DType::kF32, {heads}, "a_log");
  check(backend, rule.dt_bias, DType::kF32, {heads}, "dt_bias");
  if (batch.num_chunks > 0)
    check(backend, batch.long_spans, DType::kI32, {batch.long_spans.dim(0), 3}, "spans");
  const DeltaRuleShape shape = {rule.num_key_heads, static_cast<int>(heads), static_cast<int>(key_dim),
                                static_cast<int>(value_dim)};
  const auto bytes = static_cast<std::int64_t>(backend.delta_rule_workspace_bytes(shape, out.dtype()));
  if (bytes > 0) check(backend, rule.workspace, DType::kU8, {bytes}, "workspace");
  check(backend, net.norm.weight, DType::kF32, {value_dim}, "weight");
  QUIRE_CHECK(!net.norm.bias.defined(), "a norm with a bias");
  run(backend, "gated_delta_net", &Backend::gated_delta_net, out, x, net, batch);
}

void cap(Backend& backend, const Tensor& x, float cap) {
  check(backend, x, DType::kF32, {x.dim(0), x.dim(1)}, "x");
  QUIRE_CHECK(cap > 0, "a cap of {}", cap);
  run(backend, "cap", &Backend::cap, x, cap);
}

void route_experts(Backend& backend, const ExpertRouting& out, const Tensor& logits,
                   const RouterOptions& options) {
  check_routing(backend, out, logits, logits.dim(0), options);
  run(backend, "route_experts", &Backend::route_experts, out, logits, options);
}

void routing_linear(Backend& backend, const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                    const RouterOptions& options, const Tensor& logits) {
  check(backend, x, x.dtype(), {x.dim(0), router.in_features()}, "x");
  check_routing(backend, out, logits, x.dim(0), options);
  QUIRE_CHECK(logits.dim(1) == router.out_features(), "{} logits of {} experts", logits.dim(1),
              router.out_features());
  run(backend, "routing_linear", &Backend::routing_linear, out, x, router, options, logits);
}

void experts(Backend& backend, const Tensor& out, const Tensor& x, const ExpertWeights& weights,
             const ExpertRouting& routing, const Tensor& workspace) {
  const ExpertShape& shape = weights.shape();
  const std::int64_t tokens = x.dim(0);
  QUIRE_CHECK(tokens <= shape.max_num_tokens, "{} tokens of at most {}", tokens, shape.max_num_tokens);
  check(backend, x, x.dtype(), {tokens, shape.hidden_size}, "x");
  check(backend, out, x.dtype(), {tokens, shape.hidden_size}, "out");
  check(backend, routing.experts, DType::kI32, {tokens, shape.top_k}, "experts");
  check(backend, routing.weights, DType::kF32, {tokens, shape.top_k}, "weights");
  const auto bytes = static_cast<std::int64_t>(backend.expert_workspace_bytes(shape, x.dtype()));
  if (bytes > 0) check(backend, workspace, DType::kU8, {bytes}, "workspace");
  const auto& [gate_up, down] = weights.biases();
  check_optional(backend, gate_up, 2 * shape.num_experts * shape.intermediate_size, "bias");
  check_optional(backend, down, shape.num_experts * shape.hidden_size, "bias");
  run(backend, "experts", &Backend::experts, out, x, weights, routing, workspace);
}

void gather_rows(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& rows) {
  check(backend, rows, DType::kI32, {rows.dim(0)}, "rows");
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  check(backend, out, x.dtype(), {rows.dim(0), x.dim(1)}, "out");
  run(backend, "gather_rows", &Backend::gather_rows, out, x, rows);
}

void gather_cols(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& cols) {
  check(backend, cols, DType::kI32, {cols.dim(0)}, "cols");
  check(backend, x, x.dtype(), {x.dim(0), x.dim(1)}, "x");
  check(backend, out, x.dtype(), {x.dim(0), cols.dim(0)}, "out");
  run(backend, "gather_cols", &Backend::gather_cols, out, x, cols);
}

void take_sampled_tokens(Backend& backend, const Tensor& ids, const Tensor& places, const Tensor& tokens) {
  check(backend, ids, DType::kI32, {ids.dim(0)}, "ids");
  check(backend, places, DType::kI32, {ids.dim(0)}, "places");
  check(backend, tokens, DType::kI32, {tokens.dim(0)}, "tokens");
  run(backend, "take_sampled_tokens", &Backend::take_sampled_tokens, ids, places, tokens);
}

void set_token_states(Backend& backend, const Tensor& seat_states, const Tensor& entries) {
  check(backend, seat_states, DType::kI16, {seat_states.dim(0)}, "seat_states");
  check(backend, entries, DType::kI32, {entries.dim(0), 2}, "entries");
  run(backend, "set_token_states", &Backend::set_token_states, seat_states, entries);
}

void adjust_logits(Backend& backend, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment) {
  const LogitsAdjustment& a = adjustment;
  const std::int64_t rows = a.num_rows;
  check(backend, logits, DType::kF32, {logits.dim(0), logits.dim(1)}, "logits");
  check(backend, last_tokens, DType::kI32, {last_tokens.dim(0)}, "last_tokens");
  check(backend, a.rows, DType::kI32, {rows}, "rows");
  check(backend, a.seats, DType::kI32, {rows}, "seats");
  check(backend, a.state_uses, DType::kI32, {rows}, "state_uses");
  check(backend, a.repetition, DType::kF32, {rows}, "repetition");
  check(backend, a.frequency, DType::kF32, {rows}, "frequency");
  check(backend, a.presence, DType::kF32, {rows}, "presence");
  check(backend, a.bias_starts, DType::kI32, {rows + 1}, "bias_starts");
  check(backend, a.bias_ids, DType::kI32, {a.bias_ids.dim(0)}, "bias_ids");
  check(backend, a.bias_values, DType::kF32, {a.bias_ids.dim(0)}, "bias_values");
  check(backend, a.mask_starts, DType::kI32, {rows + 1}, "mask_starts");
  check(backend, a.masks, DType::kI32, {a.masks.dim(0), 2}, "masks");
  check(backend, a.token_states, DType::kI16, {last_tokens.dim(0), a.token_states.dim(1)}, "token_states");
  QUIRE_CHECK(a.token_states.dim(1) >= logits.dim(1), "token_states is {}", a.token_states.describe());
  if (a.bitmask_rows.defined()) {
    check(backend, a.bitmask_rows, DType::kI32, {rows}, "bitmask_rows");
    check(backend, a.bitmasks, DType::kI32, {a.bitmasks.dim(0), (logits.dim(1) + 31) / 32}, "bitmasks");
  }
  run(backend, "adjust_logits", &Backend::adjust_logits, logits, last_tokens, adjustment);
}

void sample(Backend& backend, const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
            const SamplingBatch& batch) {
  const std::int64_t rows = batch.num_rows;
  check(backend, logits, DType::kF32, {rows, logits.dim(1)}, "logits");
  check(backend, tokens, DType::kI32, {rows}, "tokens");
  check(backend, last_tokens, DType::kI32, {last_tokens.dim(0)}, "last_tokens");
  check(backend, batch.temperature, DType::kF32, {rows}, "temperature");
  check(backend, batch.top_k, DType::kI32, {rows}, "top_k");
  check(backend, batch.top_p, DType::kF32, {rows}, "top_p");
  check(backend, batch.min_p, DType::kF32, {rows}, "min_p");
  check(backend, batch.seeds, DType::kI64, {rows}, "seeds");
  check(backend, batch.positions, DType::kI32, {rows}, "positions");
  check(backend, batch.seats, DType::kI32, {rows}, "seats");
  run(backend, "sample", &Backend::sample, tokens, last_tokens, logits, batch);
}

void log_probs(Backend& backend, const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) {
  const std::int64_t rows = batch.num_rows;
  check(backend, logits, DType::kF32, {logits.dim(0), logits.dim(1)}, "logits");
  check(backend, batch.tokens, DType::kI32, {logits.dim(0)}, "tokens");
  if (batch.rows.defined()) check(backend, batch.rows, DType::kI32, {rows}, "rows");
  if (batch.named.defined()) check(backend, batch.named, DType::kI32, {rows, kMaxNamedLogprobs}, "named");
  QUIRE_CHECK(rows <= logits.dim(0) && batch.num_top <= logits.dim(1), "{} rows, {} tokens each", rows,
              batch.num_top);
  check(backend, out.ids, DType::kI32, {rows, 1 + batch.num_top}, "ids");
  check(backend, out.logprobs, DType::kF32, {rows, 1 + batch.num_top}, "logprobs");
  check(backend, out.ranks, DType::kI32, {rows}, "ranks");
  if (batch.num_top > kMaxTopLogprobs) return backend.Backend::log_probs(out, logits, batch);
  run(backend, "log_probs", &Backend::log_probs, out, logits, batch);
}

void update_block_tables(Backend& backend, const Tensor& tables, const Tensor& entries) {
  check(backend, tables, DType::kI32, {tables.dim(0), tables.dim(1)}, "tables");
  check(backend, entries, DType::kI32, {entries.dim(0), 3}, "entries");
  run(backend, "update_block_tables", &Backend::update_block_tables, tables, entries);
}

void copy_blocks(Backend& backend, const Tensor& to, const Tensor& from, const Tensor& pairs) {
  check(backend, pairs, DType::kI32, {pairs.dim(0), 2}, "pairs");
  for (const Tensor& blocks : {to, from}) {
    QUIRE_CHECK(blocks.dtype() == DType::kU8 && blocks.num_dims() == 3 && blocks.contiguous() &&
                    blocks.dim(0) == to.dim(0) && blocks.dim(2) == to.dim(2),
                "blocks of {} and of {}", to.describe(), from.describe());
  }
  run(backend, "copy_blocks", &Backend::copy_blocks, to, from, pairs);
}

}  // namespace quire::ops
