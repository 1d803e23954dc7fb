#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/tensor.h"
#include "ops/activation.h"
#include "ops/attention_batch.h"
#include "ops/experts.h"
#include "ops/logits_adjustment.h"
#include "ops/logprob_batch.h"
#include "ops/sampling_batch.h"
#include "ops/weight_source.h"

namespace quire {

// Memory of a backend; freed with its owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<void> data, std::size_t bytes, DeviceKind device)
      : data_(std::move(data)), bytes_(bytes), device_(device) {}

  void* data() const { return data_.get(); }
  std::size_t bytes() const { return bytes_; }
  DeviceKind device() const { return device_; }

 private:
  std::shared_ptr<void> data_;
  std::size_t bytes_ = 0;
  DeviceKind device_ = DeviceKind::kCpu;
};

enum class MemoryKind : std::uint8_t {
  kDevice,  // where ops read and write
  kHost,    // readable by the host, and copied to and from the device without a stop (pinned)
};

// A point in the backend's queue; what was queued before it is done once it has passed.
using Event = std::uint64_t;

// A matrix [out_features, in_features] in the form this backend multiplies with; the layout is the backend's
// own.
class LinearWeights {
 public:
  virtual ~LinearWeights() = default;
  virtual std::int64_t out_features() const = 0;
  virtual std::int64_t in_features() const = 0;
  virtual std::size_t bytes() const = 0;
};

// Ops recorded once, to be queued again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
};

// What a device can do at best, measured.
struct DeviceCeiling {
  double read_gb_per_s = 0;
  double matrix_gflop_per_s = 0;  // bfloat16
};

enum class OpKind : std::uint8_t { kLinear, kAttention, kSampling, kOther };
inline constexpr std::size_t kNumOpKinds = 4;
// Seconds the ops of each kind took.
using OpTimes = std::array<double, kNumOpKinds>;

// The key and value halves of a fused projection, and what is done to them before attention; see
// Backend::prepare_attention.
struct AttentionInput {
  Tensor
      qkv;  // [tokens, (num_heads + 2 * num_kv_heads) * head_dim]; its query columns are rewritten in place
  Tensor q_norm;  // [head_dim], or undefined: no norm
  Tensor k_norm;  // [head_dim], or undefined: no norm
  float norm_eps = 0;
  Tensor cos_sin;  // f32 [positions, rotary_dim]: rotary_dim / 2 cosines, then as many sines; or undefined:
                   // no rotary
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
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

// How rows are normed: RMSNorm (Zhang and Sennrich, 2019), x / rms(x) * weight; or with a bias LayerNorm (Ba
// et al., 2016), (x - mean(x)) / deviation(x) * weight + bias.
struct NormParams {
  Tensor weight;  // f32 [n]
  Tensor bias;    // f32 [n], or undefined
  float eps = 0;  // added to the mean square, or to the variance
};

// How ranks on devices are connected.
struct RankOptions {
  double watchdog = 5;                     // seconds until a rank that is waited for in one operation is lost
  bool disable_custom_all_reduce = false;  // only by the vendor's library, not by kernels of ours
};

class Communicator;

// Everything Quire asks of a device: memory, a queue, and the ops. Ops are queued in the order they are
// called and run in that order; tensors must live until then. Arguments come checked (ops.cpp). Sums are
// taken in float32. Activations and weights of one model share a float dtype; the residual stream is always
// float32. Thread contract: one thread at a time.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  virtual DeviceKind device() const = 0;
  virtual bool supports(DType dtype) const = 0;  // for weights, activations and the KV cache
  virtual bool asynchronous() const = 0;         // ops return before they have run

  virtual std::size_t total_memory() const = 0;  // bytes of memory the device has
  // Bytes of it that somebody holds now; 0 where the system lends memory as it is touched.
  virtual std::size_t used_memory() const { return 0; }

  // Memory, 64-byte aligned, zeroed. Error when there is not enough.
  virtual Buffer allocate(std::size_t bytes, MemoryKind kind) = 0;
  // Copies src to dst, contiguous and of equal bytes; either may be host memory of this backend.
  virtual void copy(const Tensor& dst, const Tensor& src) = 0;
  virtual Event record() = 0;          // marks the end of what is queued so far
  virtual void wait(Event event) = 0;  // blocks until the event has passed

  virtual bool has_graphs() const { return false; }
  // Records what `ops` queues, with the tensors it names, and queues none of it. Nothing may be allocated or
  // waited for meanwhile, and every op must have run with these shapes before. For backends that have graphs.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& ops) {
    static_cast<void>(ops);
    return nullptr;
  }
  virtual void replay(const Graph& graph) { static_cast<void>(graph); }

  // The communicator for tensors on this device, of the ranks that `host` connects for tensors in host
  // memory. All ranks call it at the same time. It may not outlive this backend. Error, on every rank, where
  // they cannot be connected.
  virtual std::unique_ptr<Communicator> connect(std::unique_ptr<Communicator> host,
                                                const RankOptions& options);

  // Measured now, on a device with nothing else to do; none where the host can measure it as well.
  virtual std::optional<DeviceCeiling> measure_ceiling() { return {}; }
  // Between the two, ops are timed one by one, without gaps between them; graphs are not. stop_profile waits
  // for them. For backends that have graphs.
  virtual void start_profile() {}
  virtual OpTimes stop_profile() { return {}; }

  // Packs the parts' rows, one below the other, as one matrix. Every part is [out, in_features].
  virtual std::unique_ptr<LinearWeights> make_linear(std::span<const WeightTensorPtr> parts, DType dtype) = 0;
  // LinearWeights::bytes() of what make_linear would pack, known without packing. A backend that pads its
  // layout says so here.
  virtual std::size_t linear_bytes(std::int64_t out_features, std::int64_t in_features, DType dtype) const {
    return static_cast<std::size_t>(out_features * in_features) * size_of(dtype);
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
  virtual void norm(const Tensor& out, const Tensor& x, const NormParams& params) = 0;
  // residual f32 [tokens, n] += scale * x [tokens, n]; out [tokens, n] = residual, normed.
  virtual void add_norm(const Tensor& out, const Tensor& residual, const Tensor& x, float scale,
                        const NormParams& params) = 0;
  // Bytes that attention wants for itself in AttentionBatch::workspace.
  virtual std::size_t attention_workspace_bytes(const AttentionShape& shape) const {
    static_cast<void>(shape);
    return 0;
  }
  // Once a step for each group of layers, before the first of them: what attention can work out from the
  // batch for all of them; to be the batch's `plan`. It may be used until the batch's workspace is planned in
  // again, or with a graph that was recorded with it. Block tables and slots are not looked at.
  virtual std::shared_ptr<const AttentionPlan> plan_attention(const AttentionBatch& batch,
                                                              const AttentionShape& shape) {
    static_cast<void>(batch);
    static_cast<void>(shape);
    return nullptr;
  }
  // Per token and head: RMS norm of q and k where given, rotary embedding of q and k where given (Su et al.,
  // 2021; the first half of the dimensions is paired with the second), then k and v are written to their
  // slots of the cache.
  virtual void prepare_attention(const AttentionInput& input, const KvCacheLayer& cache,
                                 const AttentionBatch& batch) = 0;
  // out [tokens, num_heads * head_dim] = softmax(scores of q · kᵀ) · v, causal, over the paged cache; q are
  // the first num_heads * head_dim columns of qkv, and head h reads KV head h / (num_heads / num_kv_heads).
  // Blocks wholly before the window of every query are not read, nor are their entries of the block table.
  virtual void attention(const Tensor& out, const Tensor& q, const KvCacheLayer& cache,
                         const AttentionBatch& batch, const AttentionScores& scores) = 0;
  // out [tokens, n] = activation(x [tokens, n]); out may be x.
  virtual void activate(const Tensor& out, const Tensor& x, Activation activation) = 0;
  // out [tokens, n] = activation(gate) * up, with gate_up [tokens, 2n].
  virtual void activate_gate(const Tensor& out, const Tensor& gate_up, Activation activation) = 0;
  // linear without bias, then activate_gate: out [tokens, n], weights [2n, in_features]. gate_up [tokens, 2n]
  // may be written on the way.
  virtual void gated_linear(const Tensor& out, const Tensor& x, const LinearWeights& weights,
                            const Tensor& gate_up, Activation activation) {
    linear(gate_up, x, weights, {});
    activate_gate(out, gate_up, activation);
  }
  // x f32 [tokens, n] = cap * tanh(x / cap), in place; cap is above 0.
  virtual void cap(const Tensor& x, float cap) = 0;
  // Softmax over logits f32 [tokens, num_experts], then the top_k largest, the first of equals first, with
  // their probabilities; `normalize`: divided by their sum.
  virtual void route_experts(const ExpertRouting& out, const Tensor& logits, bool normalize) = 0;
  // linear, then route_experts: x [tokens, in_features], router [num_experts, in_features]. logits f32
  // [tokens, num_experts] may be written on the way.
  virtual void routing_linear(const ExpertRouting& out, const Tensor& x, const LinearWeights& router,
                              bool normalize, const Tensor& logits) {
    linear(logits, x, router, {});
    route_experts(out, logits, normalize);
  }
  // shape.num_experts of them.
  virtual std::unique_ptr<ExpertWeights> make_experts(std::span<const ExpertParts> experts,
                                                      const ExpertShape& shape, DType dtype) = 0;
  // ExpertWeights::bytes() of what make_experts would pack.
  virtual std::size_t expert_bytes(const ExpertShape& shape, DType dtype) const {
    return shape.num_experts * (linear_bytes(2 * shape.intermediate_size, shape.hidden_size, dtype) +
                                linear_bytes(shape.hidden_size, shape.intermediate_size, dtype));
  }
  // Bytes that `experts` wants for itself.
  virtual std::size_t expert_workspace_bytes(const ExpertShape& shape, DType dtype) const {
    static_cast<void>(shape);
    static_cast<void>(dtype);
    return 0;
  }
  // out [tokens, hidden_size] = the sum over a token's experts e, in order of their number, of its weight for
  // e * down_e(silu(gate_e(x)) * up_e(x)), x [tokens, hidden_size]. workspace u8 [expert_workspace_bytes], or
  // undefined where that is 0.
  virtual void experts(const Tensor& out, const Tensor& x, const ExpertWeights& weights,
                       const ExpertRouting& routing, const Tensor& workspace) = 0;
  // out [m, n] = rows `rows` i32 [m] of x.
  virtual void gather_rows(const Tensor& out, const Tensor& x, const Tensor& rows) = 0;
  // ids i32 [n]: where places i32 [n] is not negative, the id becomes tokens[place].
  virtual void fill_tokens(const Tensor& ids, const Tensor& places, const Tensor& tokens) = 0;
  // Bytes that sampling wants for itself in SamplingBatch::workspace, for up to max_rows rows.
  virtual std::size_t sampling_workspace_bytes(int max_rows, std::int64_t vocab_size) const {
    static_cast<void>(max_rows);
    static_cast<void>(vocab_size);
    return 0;
  }
  // For each (token, state) of entries i32 [n, 2], one state of a slot is set: slot_states i16 [vocab or
  // more].
  virtual void set_token_states(const Tensor& slot_states, const Tensor& entries) = 0;
  // Changes rows of logits f32 [rows, vocab] in place, as `adjustment` says. Order: biases are added; masked
  // and forbidden tokens become -infinity; tokens of the prompt or the output are divided by the repetition
  // penalty where above 0, else multiplied with it; from those of the output, frequency penalty times their
  // number is subtracted, then the presence penalty. Where the row says so, the slot's last token is counted
  // in its token state first.
  virtual void adjust_logits(const Tensor& logits, const Tensor& last_tokens,
                             const LogitsAdjustment& adjustment) = 0;
  // One token for each row of logits f32 [rows, vocab], as `batch` says; written to tokens i32 [rows] and to
  // last_tokens i32 [slots]. -2 where a row has no finite maximum. Order: temperature, min_p, top_k, top_p.
  // Draws are Gumbel-max over Philox keyed by the seed with counter (vocabulary index / 4, position, 0, 0).
  virtual void sample(const Tensor& tokens, const Tensor& last_tokens, const Tensor& logits,
                      const SamplingBatch& batch) = 0;
  // Log-softmax of rows of logits f32 [rows, vocab]: of a token each, with its rank, and of the most likely
  // ones. A token below 0 has none: NaN, and rank 0.
  virtual void log_probs(const LogprobRows& out, const Tensor& logits, const LogprobBatch& batch) = 0;
  // tables i32 [max_num_seqs, max_blocks]: for each (row, column, block) of entries i32 [n, 3], one entry is
  // set.
  virtual void update_block_tables(const Tensor& tables, const Tensor& entries) = 0;
  // Copies whole blocks in every layer: pairs i32 [n, 2] of (block of `from`, block of `to`). Within one
  // cache one after the other; between two, of which one may lie in host memory of this backend, in any
  // order.
  virtual void copy_blocks(std::span<const KvCacheLayer> to, std::span<const KvCacheLayer> from,
                           const Tensor& pairs) = 0;
};

}  // namespace quire
