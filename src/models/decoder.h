#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/experts.h"
#include "layers/mlp.h"
#include "layers/norm.h"
#include "models/file_layouts.h"
#include "models/model.h"

namespace quire {

// The attention of one layer.
struct LayerAttention {
  AttentionOptions options;  // all but the hidden size and the rotary table
  std::optional<ModelConfig::RotaryConfig> rotary;
};

// Where the norms of a block stand.
enum class BlockNorms : std::uint8_t {
  kBefore,  // before attention (input_layernorm) and before the MLP (post_attention_layernorm)
  kAfter,   // of what they add (post_attention_layernorm, post_feedforward_layernorm)
  kAround,  // both (the MLP's first is pre_feedforward_layernorm)
  kShared   // one before both (input_layernorm), which stand side by side
};

// What the families differ in that add attention and an MLP to a residual stream.
struct DecoderConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int max_positions = 0;  // that the model was made for

  bool tie_word_embeddings = false;
  bool embedding_norm = false;    // a norm over the embedding
  int num_learned_positions = 0;  // an embedding of positions is added; 0: none
  float embedding_scale = 1;      // of the embedding
  float residual_scale = 1;       // of what a block adds
  float logits_scale = 1;
  float logits_cap = 0;  // over 0: logits are cap * tanh(logit / cap)

  BlockNorms norms = BlockNorms::kBefore;
  NormKind norm = NormKind::kRms;
  bool norm_bias = true;  // of LayerNorm
  float norm_eps = 0;
  float norm_offset = 0;       // added to the weights of every norm
  AttentionOptions attention;  // of every layer, all but the hidden size and the rotary table
  std::optional<ModelConfig::RotaryConfig> rotary;
  bool neighbour_rotary = false;         // of the file: neighbouring dimensions rotate together
  std::vector<LayerAttention> layers;    // where layers differ: instead of these two, of each
  MlpOptions mlp;                        // all but the hidden size
  std::optional<ExpertOptions> experts;  // in place of the MLP, all but the hidden size
  std::vector<int> dense_layers;         // layers that have the MLP nevertheless
};

// One of their models. Layers ask for tensors by the names of Llama's checkpoints, such as
// "model.layers.3.self_attn.q_proj.weight".
class DecoderModel : public Model {
 public:
  DecoderModel(const DecoderConfig& config, const LoadContext& context);

  Tensor forward(const Step& step) override;
  const LmHead& head() const override { return head_; }

 private:
  struct Layer {
    Layer(const LoadContext& context, int index, const DecoderConfig& config,
          const AttentionOptions& options);

    Norm attention_norm;
    Attention attention;
    std::optional<Norm> after_attention_norm;
    Norm mlp_norm;
    std::optional<Norm> after_mlp_norm;
    std::variant<Mlp, Experts> mlp;
  };

  VocabParallelEmbedding embedding_;
  std::optional<VocabParallelEmbedding> positions_;
  std::optional<Norm> embedding_norm_;
  std::vector<Layer> layers_;
  Norm final_norm_;
  LmHead head_;
  Tensor residual_, normed_, position_rows_;  // activations
  Tensor unread_;  // where norms are shared: in place of normed, which the MLP reads as attention did
};

// What a model of several kinds of input has beside its text part.
inline const IgnorableTensors kOtherModalities = {
    .beginnings = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                   "model.multi_modal_projector.", "visual.", "model.visual."}};

// Registers a family of decoders before main.
class DecoderRegistration {
 public:
  using ReadConfig = DecoderConfig (*)(const ModelConfig& config);
  // A family's own names of its tensors; the result refers to `weights`.
  using RenameWeights =
      std::function<std::unique_ptr<WeightSource>(const DecoderConfig& config, WeightSource& weights)>;

  DecoderRegistration(const std::string& architecture, ReadConfig read, IgnorableTensors ignorable,
                      RenameWeights rename = {});

 private:
  ModelRegistration registration_;
};

// The keys that Llama and the families after it share, with transformers' defaults for a family.
struct DecoderDefaults {
  int vocab_size, hidden_size, intermediate_size, num_layers, num_heads;
  int num_kv_heads = 0;  // 0: as many as heads
  int max_positions = 0;
  int head_dim = 0;  // 0: hidden_size / num_heads
  float norm_eps = 1e-6F;
  const char* norm_eps_key = "rms_norm_eps";
  double rope_theta = 10000;
  bool tie_word_embeddings = false;
  const char* activation = "silu";
  double partial_rotary_factor = 1;
  bool scales_queries = false;      // where the rotary parameters say so
  const char* rotary_of = nullptr;  // the type of layers whose parameters are read where each has its own
};
DecoderConfig read_llama_like(const ModelConfig& config, const DecoderDefaults& defaults);
// The same, and what Gemma's generations share from the second on.
DecoderConfig read_gemma_like(const ModelConfig& config, const DecoderDefaults& defaults);

// Which layers are local by layer_types, or where that is absent by is_local(layer). Error of other types.
std::vector<bool> read_local_layers(const ModelConfig& config, int num_layers,
                                    const std::function<bool(int layer)>& is_local);
// sliding_window, or where that key is absent `fallback`; null, like 0, means none.
int read_window(const ModelConfig& config, int fallback);
// Of local layers where each type has rotary parameters of its own; else plain ones of `theta`.
ModelConfig::RotaryConfig read_local_rotary(const ModelConfig& config, double theta);
// What every layer has so far, with a window.
LayerAttention with_window(const DecoderConfig& decoder, int window);
// Local layers have the one attention, the others the other.
void set_layers(DecoderConfig& decoder, const std::vector<bool>& is_local, const LayerAttention& local,
                const LayerAttention& other);
// The windows of Qwen's layers, by use_sliding_window, sliding_window and max_window_layers, or layer_types.
void read_qwen_windows(const ModelConfig& config, DecoderConfig& decoder);

// For FusedWeights: q, k and v as qkv_proj; the gate and up as gate_up_proj.
std::vector<FusedPart> fused_qkv(const DecoderConfig& config);
std::vector<FusedPart> fused_gate_up(const DecoderConfig& config);

}  // namespace quire
