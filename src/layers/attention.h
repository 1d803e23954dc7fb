#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "layers/linear.h"
#include "layers/norm.h"

namespace quire {

enum class QkNorm : std::uint8_t {
  kNone,
  kHead,             // an RMSNorm over each head of q and k
  kHeadAfterRotary,  // the same of what is rotated
  kAll               // over all heads of q, and all of k
};

// What layers of equal rotary embedding share, by position.
struct RotaryTables {
  Tensor cos_sin;  // f32 [max_model_len, rotary_dim], as in AttentionInput; undefined: no rotary embedding
  Tensor q_scale;  // f32 [max_model_len], of queries; undefined: 1
};

struct AttentionOptions {
  std::int64_t hidden_size = 0;
  int num_heads = 0;     // over all ranks
  int num_kv_heads = 0;  // over all ranks
  int head_dim = 0;
  float scale = 0;      // of the scores
  float score_cap = 0;  // over 0: scores are cap * tanh(score / cap) (Gemma 2)
  int window = 0;       // positions a token attends to, its own included; 0: all up to its own
  bool alibi = false;   // scores fall with the distance (Press et al., 2022)
  bool qkv_bias = false;
  bool value_is_key = false;  // v is what k is before its norm and rotation
  bool value_norm = false;    // an RMSNorm without weights over each head of v
  // Attends to what this layer keeps, and keeps nothing itself.
  std::optional<StateId> shared_state = {};
  bool out_bias = false;
  bool output_gate = false;  // what a head gathers is multiplied by the sigmoid of PREFIX.q_gate
  QkNorm qk_norm = QkNorm::kNone;
  NormOptions norm;    // of q, k and v; only its eps and weight_offset are used
  bool sinks = false;  // a learned score of each head, without a value: PREFIX.sinks
  RotaryTables tables;
};

// Causal self-attention over the paged cache; PREFIX is "model.layers.3.self_attn". Query heads are spread
// over the ranks; KV heads too, or replicated where there are more ranks than KV heads.
class Attention {
 public:
  Attention(const LoadContext& context, const std::string& prefix, const AttentionOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x, const Step& step) const;

 private:
  Backend& backend_;
  AttentionInput input_;  // all but the step's rows of qkv
  AttentionScores scores_;
  std::optional<HeadsNorm> q_norm_, k_norm_;  // over all heads
  StateId state_;
  ColumnParallelLinear qkv_proj_;
  RowParallelLinear o_proj_;
  Tensor qkv_, heads_, out_;  // activations
};

}  // namespace quire
