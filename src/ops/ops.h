#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "ops/activation.h"
#include "ops/attention_batch.h"
#include "ops/device.h"
#include "ops/experts.h"
#include "ops/logits_batches.h"
#include "ops/state_batch.h"
#include "ops/weight_source.h"

namespace quire {

// A matrix [out_features, in_features] in the form this backend multiplies with; the layout is the backend's
// own.
class LinearWeights {
 public:
  LinearWeights(std::int64_t out_features, std::int64_t in_features, std::size_t bytes)
      : out_features_(out_features), in_features_(in_features), bytes_(bytes) {}
  virtual ~LinearWeights() = default;

  std::int64_t out_features() const { return out_features_; }
  std::int64_t in_features() const { return in_features_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::int64_t out_features_, in_features_;
  std::size_t bytes_;
};

// The key and value halves of a fused projection, and what is done to them before attention; see
// Backend::rotate_and_store.
struct AttentionInput {
  // [tokens, (num_heads + 2 * num_kv_heads) * head_dim]; rotate_and_store rewrites its query columns in
  // place.
  Tensor qkv;
  Tensor q_norm;       // [head_dim], or undefined: no norm
  Tensor k_norm;       // [head_dim], or undefined: no norm
  Tensor v_norm = {};  // [head_dim], or undefined: no norm
  float norm_eps = 0;
  bool norm_after_rotary = false;
  Tensor cos_sin;  // f32 [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines; or undefined:
                   // no rotary
  Tensor q_scale;  // f32 [positions]: a token's queries are multiplied by that of its position; or undefined
  int num_heads = 0;
  int num_kv_heads = 0;  // 0: nothing is stored; the cache has another layer's keys and values
  int head_dim = 0;
  // f32 [num_kv_heads]: the scales of a cache of codes; or undefined: each row has its own, row_scale.
  Tensor k_scales = {};
  Tensor v_scales = {};

  Tensor queries() const { return qkv.columns(0, std::int64_t{num_heads} * head_dim); }
};

// What attention makes of a query's products with the keys.
struct AttentionScores {
  float scale = 1;
  float cap = 0;   // over 0: a scaled product s becomes cap * tanh(s / cap), before all that follows
  int window = 0;  // positions a query attends to, its own included; 0: all up to its own
  // f32 [num_heads]: slope * (key's position - query's) is added to a score (Press et al., ALiBi, 2022); or
  // undefined: nothing is.
  Tensor alibi_slopes;
  // f32 [num_heads]: one more score of each head, which takes its share of the softmax and has no value (Xiao
  // et al., "Efficient streaming language models with attention sinks", 2023, as gpt-oss has it); or
  // undefined: none.
  Tensor sinks;
};

// What the gated delta rule reads of each token; value head h goes with key head h / (num_value_heads /
// num_key_heads). See Backend::gated_delta_rule.
struct DeltaRuleInput {
  Tensor qkv;  // [tokens, 2 * num_key_heads * key_dim + num_value_heads * value_dim]: queries, keys, values
  // [tokens, 2 * num_value_heads], of qkv's dtype: b, by which parts of the state are replaced, then a, by
  // which it decays.
  Tensor rates;
  Tensor a_log;    // f32 [num_value_heads]
  Tensor dt_bias;  // f32 [num_value_heads]
  int num_key_heads = 0;
  Tensor workspace = {};  // u8 [Backend::delta_rule_workspace_bytes], or undefined where that is 0
};

struct DeltaRuleShape {
  int num_key_heads, num_value_heads, key_dim, value_dim;
};

// How rows are normed: RMSNorm (Zhang and Sennrich, 2019), x / rms(x) * weight; or with a bias LayerNorm (Ba
// et al., 2016), (x - mean(x)) / deviation(x) * weight + bias; or without a weight not at all: a copy.
struct NormParams {
  Tensor weight;        // f32 [n], or undefined
  Tensor bias;          // f32 [n], or undefined
  float eps = 0;        // added to the mean square, or to the variance
  float sum_scale = 1;  // of add_norm: the sum is multiplied by it
};

// Of a depthwise causal convolution over K tokens.
struct ConvParams {
  Tensor weight;  // f32 [K, channels]: the last row is that of a token itself
  Tensor bias;    // f32 [channels], or undefined
  Activation activation = Activation::kIdentity;
};

// What a layer of Gated DeltaNet does between its products, and the states that it keeps. See
// Backend::gated_delta_net.
struct DeltaNet {
  ConvParams conv;      // of queries, keys and values
  DeltaRuleInput rule;  // without a token's rows
  NormParams norm;      // of a value head
  Tensor conv_state;    // causal_conv's
  Tensor state;         // gated_delta_rule's
  Tensor mixed;         // [tokens, channels]: may be written on the way
  Tensor heads;         // f32 [tokens, num_value_heads * value_dim]: may be written on the way
};

// A device and every op, with its shapes and its meaning. Ops are queued in the order they are called, as
// copies are. Arguments come checked (quire::ops, below). Sums are taken in
// float32. Activations and weights of one model share a float dtype; the residual stream is always float32.
//
// What an op does not say otherwise is its reference in ops/reference: plain C++ that adds up each output
// element in one fixed order, whatever else is in the batch. It is the oracle of everything faster, and what
// runs until a device overrides it: in place where memory is the host's, else on copies in host memory. Then
// a model runs without graphs and with one step in flight, and the log says so once.
class Backend : public Device {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Whether an op has run on copies in host memory.
  bool runs_on_host() const { return !ops_on_host_.empty(); }

  // Which op was called last, and how many have been: signs of life, which any thread may read.
  void begin_op(const char* name) {
    last_op_.store(name, std::memory_order_relaxed);
    num_ops_.store(num_ops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  const char* last_op() const { return last_op_.load(std::memory_order_relaxed); }
  std::uint64_t num_ops() const { return num_ops_.load(std::memory_order_relaxed); }

  // Packs the parts' rows, one below the other, as one matrix. Every part is [out, in_features], and they are
  // alike (num_alike). Of a matrix of codes the columns are in the codes' order. dtype: of the activations,
  // and of the weights where they are plain. Error where the format is not supported.
  virtual std::unique_ptr<LinearWeights> make_linear(std::span<const WeightGroup> parts, DType dtype) = 0;
  // LinearWeights::bytes() of what make_linear would pack, known without packing. A backend that pads its
  // layout says so here.
  virtual std::size_t linear_bytes(std::span<const WeightGroup> parts, DType dtype) const {
    const MatrixShape shape = shape_of(parts);
    return static_cast<std::size_t>(shape.rows * shape.cols) * size_of(dtype);
  }

  // out [tokens, out_features] = x [tokens, in_features] · weightsᵀ (+ bias [out_features], or undefined).
  // out has x's dtype, or f32.
  virtual void linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                      const Tensor& bias) = 0;
  // out f32 [tokens, in_features] = scale * rows `ids` i32 [tokens] minus first_row of weights; ids outside
  // give zeros.
  virtual void embedding(const Tensor& out, const LinearWeights& weights, const Tensor& ids,
                         std::int64_t first_row, float scale) = 0;
  // out [tokens, n] = x [tokens, n], normed; x is f32 or has out's dtype, and out may be x.
  virtual void norm(const Tensor& out, const Tensor& x, const NormParams& params);
  // residual f32 [tokens, n] = params.sum_scale * (residual + scale * x [tokens, n]); out [tokens, n] =
  // residual, normed; out may be x.
  virtual void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                        const NormParams& params);
  // Takes the memory that the ops want for themselves beside all workspaces, for the matrices packed so far
  // and attention of these shapes: before the first step, which then takes none.
  virtual void reserve(std::span<const AttentionShape> /*shapes*/) {}
  // Bytes of it, and of what the first matrix of codes takes beside itself. widest: columns of the widest
  // matrix; has_codes: some are quantised.
  virtual std::size_t reserved_bytes(std::int64_t /*widest*/, bool /*has_codes*/,
                                     std::span<const AttentionShape> /*shapes*/) const {
    return 0;
  }
  // Bytes that attention wants for itself in AttentionBatch::workspace.
  virtual std::size_t attention_workspace_bytes(const AttentionShape&) const { return 0; }
  // Once a step for each group of layers, before the first of them: what attention can work out from the
  // batch for all of them; to be the batch's `plan`. It may be used until the batch's workspace is planned in
  // again, or with a graph that was recorded with it. Block tables and slots are not looked at.
  virtual std::shared_ptr<const AttentionPlan> plan_attention(const AttentionBatch&, const AttentionShape&) {
    return nullptr;
  }
  // Per token and head: RMS norm of q, k and v where given, rotary embedding of q and k where given (Su et
  // al., 2021; the first half of the dimensions is paired with the second), or the one after the other, q
  // scaled where given; then k and v are written to their slots of the cache, as codes the nearest of x /
  // scale, at most the largest. A backend may round x to the activations' type first. A NaN makes its row's
  // scale one.
  virtual void rotate_and_store(const AttentionInput& input, const KvCacheLayer& cache,
                                const AttentionBatch& batch);
  // out [tokens, num_heads * head_dim] = softmax(scores of q · kᵀ) · v, causal, over the paged cache; q are
  // the first num_heads * head_dim columns of qkv, and head h reads KV head h / (num_heads / num_kv_heads).
  // Blocks wholly before the window of every query are not read, nor are their entries of the block table.
  virtual void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                         const AttentionBatch& batch, const AttentionScores& scores);
  // rotate_and_store, then attention of its queries, which it may leave as they were. The cache may be
  // read ahead of ops in front: what has written it, and the batch, was queued before a graph, a copy or
  // take_sampled_tokens that lies between.
  virtual void self_attention(const Tensor& out, const AttentionInput& input, const KvCacheLayer& cache,
                              const AttentionBatch& batch, const AttentionScores& scores) {
    rotate_and_store(input, cache, batch);
    attention(out, input.queries(), cache, batch, scores);
  }
  // out [tokens, channels] = activation(bias + the sum over k, in order, of weight[k] * x[t - (K - 1) + k]),
  // with x [tokens, channels] of out's dtype, not out. The inputs before a sequence's first token are those
  // of its state, f32 [slots, K - 1, channels], the oldest first, strided by slots; which then gets the last
  // K - 1 inputs.
  virtual void causal_conv(const Tensor& out, const Tensor& x, const ConvParams& params, const Tensor& state,
                           const StateBatch& batch);
  // out [tokens, n] = activation(x [tokens, n]); out may be x.
  virtual void activate(const Tensor& out, const Tensor& x, Activation activation);
  // out [tokens, n] = activation(gate) * up, with gate_up [tokens, 2n]; or what the activation says of gates.
  virtual void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation);
  // linear without bias, then activate_gate: out [tokens, n], weights [2n, in_features]. gate_up [tokens, 2n]
  // may be written on the way.
  virtual void gated_linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                            const Tensor& gate_up, Activation activation) {
    linear(gate_up, x, weights, {});
    activate_gate(out, gate_up, activation);
  }
  // out [tokens, n] = x [tokens, n] * sigmoid(gate), and where `add` is set what out had, too; gate [tokens,
  // n], or [tokens, 1] for whole rows. out may be x.
  virtual void sigmoid_gate(const Tensor& out, const Tensor& x, const Tensor& gate, bool add);
  // out [tokens, heads * n] = RMSNorm of each n of x f32 [tokens, heads * n], with params.weight [n], times
  // SiLU(gate [tokens, heads * n]).
  virtual void gated_norm(const Tensor& out, const Tensor& x, const Tensor& gate, const NormParams& params);
  // The gated delta rule (Yang et al., "Gated delta networks", 2025) over the tokens of each sequence. A
  // value head's state S, f32 [key_dim, value_dim] of state [slots, num_value_heads, key_dim, value_dim],
  // strided by slots, becomes with every token g S + k (beta (v - k^T g S))^T, g = exp(-exp(a_log) softplus(a
  // + dt_bias)), beta = sigmoid(b); then out f32 [tokens, num_value_heads * value_dim] = q^T S. k and q are x
  // / sqrt(x . x + 1e-6) of their columns, q divided by sqrt(key_dim), too. All of it in float32, and bit for
  // bit the same however a sequence's tokens are spread over calls; or, with a workspace, long spans in
  // chunks, and the same where calls end at multiples of kStateChunk.
  virtual void gated_delta_rule(const Tensor& out, const DeltaRuleInput& input, const Tensor& state,
                                const StateBatch& batch);
  // causal_conv, gated_delta_rule and gated_norm, bit for bit: out [tokens, values] of x [tokens, channels +
  // values + 2 * num_value_heads], a token's queries, keys and values, the gate of the norm, and rates.
  // States may be read ahead of ops in front: what has written them was queued before a graph, a copy or
  // take_sampled_tokens that lies between.
  virtual void gated_delta_net(const Tensor& out, const Tensor& x, const DeltaNet& net,
                               const StateBatch& batch);
  // Bytes that gated_delta_rule wants for itself in DeltaRuleInput::workspace.
  virtual std::size_t delta_rule_workspace_bytes(const DeltaRuleShape&, DType) const { return 0; }
  // x f32 [tokens, n] = cap * tanh(x / cap), in place; cap is above 0.
  virtual void cap(const Tensor& x, float cap);
  // Scores of logits f32 [tokens, num_experts], then the top_k largest, the first of equals first, with their
  // weights, as `options` say.
  virtual void route_experts(const ExpertRouting& out, const Tensor& logits, const RouterOptions& options);
  // linear, then route_experts: x [tokens, in_features], router [num_experts, in_features]. logits f32
  // [tokens, num_experts] may be written on the way.
  virtual void routing_linear(const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                              const RouterOptions& options, const Tensor& logits) {
    linear(logits, x, router, {});
    route_experts(out, logits, options);
  }
  // shape.num_experts of them.
  virtual std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts,
                                                      const ExpertShape& shape, DType dtype) = 0;
  // ExpertWeights::bytes() of what make_experts would pack.
  virtual std::size_t expert_bytes(std::span<const ExpertParts> experts, DType dtype) const {
    std::size_t bytes = 0;
    for (const ExpertParts& parts : experts)
      bytes += linear_bytes(std::array{parts.gate, parts.up}, dtype) + linear_bytes({&parts.down, 1}, dtype);
    return bytes;
  }
  // Bytes that `experts` wants for itself.
  virtual std::size_t expert_workspace_bytes(const ExpertShape&, DType) const { return 0; }
  // out [tokens, hidden_size] = the sum over a token's experts e, in order of their number, of its weight for
  // e * down_e(h_e), x [tokens, hidden_size], where h_e is activate_gate of gate_e(x) and up_e(x), and biases
  // are added to products. workspace u8 [expert_workspace_bytes], or undefined where that is 0.
  virtual void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights,
                       const ExpertRouting& routing, const Tensor& workspace) = 0;
  // out [m, n] = rows `rows` i32 [m] of x.
  virtual void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows);
  // out [m, n] = columns `cols` i32 [n] of x [m, any number]; both have one dtype.
  virtual void gather_cols(const Tensor& out, const Tensor& x, const Tensor& cols);
  // ids i32 [n]: where places i32 [n] is not negative, the id becomes tokens[place].
  virtual void take_sampled_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens);
  // Bytes that sampling wants for itself in SamplingBatch::workspace, for up to max_rows rows.
  virtual std::size_t sampling_workspace_bytes(int /*max_rows*/, std::int64_t /*vocab_size*/) const {
    return 0;
  }
  // For each (token, state) of entries i32 [n, 2], one state of a seat is set: seat_states i16 [vocab or
  // more].
  virtual void set_token_states(const Tensor& seat_states, const Tensor& entries);
  // Changes rows of logits f32 [rows, vocab] in place, as `adjustment` says. Order: biases are added; masked
  // and forbidden tokens, and those that bitmasks do not allow, become -infinity; tokens of the prompt or the
  // output are divided by the repetition penalty where above 0, else multiplied with it; from those of the
  // output, frequency penalty times their number is subtracted, then the presence penalty. Where the row says
  // so, the seat's last token is counted in its token state first.
  virtual void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                             const LogitsAdjustment& adjustment);
  // One token for each row of logits f32 [rows, vocab], as `batch` says; written to tokens i32 [rows] and to
  // last_tokens i32 [seats]. -2 where a row has no finite maximum. Order: temperature, min_p, top_k, top_p.
  // Draws are Gumbel-max over Philox keyed by the seed with counter (vocabulary index / 4, position, 0, 0).
  virtual void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                      const SamplingBatch& batch);
  // Log-softmax of rows of logits f32 [rows, vocab]: of a token each, with its rank, and of the most likely
  // ones. A token below 0 has none: NaN, and rank 0.
  virtual void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch);
  // tables i32 [max_num_seqs, max_blocks]: for each (row, column, block) of entries i32 [n, 3], one entry is
  // set.
  virtual void update_block_tables(const Tensor& tables, const Tensor& entries);
  // Copies whole blocks, u8 [slots, blocks, bytes of a slot] both: pairs i32 [n, 2] of (block of `from`,
  // block of `to`). Within one cache one after the other; between two, of which one may lie in host memory of
  // this backend, in any order.
  virtual void copy_blocks(const Tensor& to, const Tensor& from, const Tensor& pairs);

 private:
  friend class HostCopies;

  std::vector<std::string_view> ops_on_host_;  // those that ran there
  std::atomic<const char*> last_op_{"none"};
  std::atomic<std::uint64_t> num_ops_{0};
};

// What layers call: each op checks shapes, dtypes and devices once, in every build type, then goes to the
// backend.
namespace ops {

void linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
            const Tensor& bias = {});
void embedding(Backend& backend, const Tensor& out, const LinearWeights& weights, const Tensor& ids,
               std::int64_t first_row, float scale = 1);
void norm(Backend& backend, const Tensor& out, const Tensor& x, const NormParams& params);
void add_norm(Backend& backend, const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
              const NormParams& params);
std::shared_ptr<const AttentionPlan> plan_attention(Backend& backend, const AttentionBatch& batch,
                                                    const AttentionShape& shape);
void self_attention(Backend& backend, const Tensor& out, const AttentionInput& input,
                    const KvCacheLayer& cache, const AttentionBatch& batch, const AttentionScores& scores);
void causal_conv(Backend& backend, const Tensor& out, const Tensor& x, const ConvParams& params,
                 const Tensor& state, const StateBatch& batch);
void activate(Backend& backend, const Tensor& out, const Tensor& x, Activation activation);
void activate_gate(Backend& backend, const Tensor& out, const Tensor& gate_up, Activation activation);
void gated_linear(Backend& backend, const Tensor& out, const Tensor& x, const LinearWeights& weights,
                  const Tensor& gate_up, Activation activation);
void sigmoid_gate(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& gate, bool add = false);
void gated_delta_net(Backend& backend, const Tensor& out, const Tensor& x, const DeltaNet& net,
                     const StateBatch& batch);
void cap(Backend& backend, const Tensor& x, float cap);
void route_experts(Backend& backend, const ExpertRouting& out, const Tensor& logits,
                   const RouterOptions& options);
void routing_linear(Backend& backend, const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                    const RouterOptions& options, const Tensor& logits);
void experts(Backend& backend, const Tensor& out, const Tensor& x, const ExpertWeights& weights,
             const ExpertRouting& routing, const Tensor& workspace);
void gather_rows(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& rows);
void gather_cols(Backend& backend, const Tensor& out, const Tensor& x, const Tensor& cols);
void take_sampled_tokens(Backend& backend, const Tensor& ids, const Tensor& places, const Tensor& tokens);
void set_token_states(Backend& backend, const Tensor& seat_states, const Tensor& entries);
void adjust_logits(Backend& backend, const Tensor& logits, const Tensor& last_tokens,
                   const LogitsAdjustment& adjustment);
void sample(Backend& backend, const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
            const SamplingBatch& batch);
void log_probs(Backend& backend, const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch);
void update_block_tables(Backend& backend, const Tensor& tables, const Tensor& entries);
void copy_blocks(Backend& backend, const Tensor& to, const Tensor& from, const Tensor& pairs);

}  // namespace ops
}  // namespace quire
