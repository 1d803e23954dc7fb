#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/experts.h"
#include "layers/gated_delta_net.h"
#include "layers/mlp.h"
#include "layers/norm.h"
#include "layers/short_conv.h"
#include "models/file_layouts.h"
#include "models/model.h"

namespace quire {

// The attention of one layer, all but the hidden size, the norm's options and the tables.
struct LayerAttention : AttentionOptions {
  std::optional<ModelConfig::RotaryConfig> rotary;
};

// Where the norms of a block stand, in the order of decoder.cpp's kNormNames.
enum class BlockNorms : std::uint8_t {
  kBefore,  // before attention (input_layernorm) and before the MLP (post_attention_layernorm)
  kAfter,   // of what they add (post_attention_layernorm, post_feedforward_layernorm)
  kAround,  // both (the MLP's first is pre_feedforward_layernorm)
  kShared   // one before both (input_layernorm), which stand side by side
};

// What the families differ in that add attention and an MLP to a residual stream. A family leaves out the
// hidden size of the parts of a layer, which DecoderRegistration adds.
struct DecoderConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int num_layers = 0;
  int max_positions = 0;  // that the model was made for

  bool tie_word_embeddings = false;
  bool embedding_norm = false;    // a norm over the embedding
  int num_learned_positions = 0;  // an embedding of positions is added; 0: none
  float embedding_scale = 1;      // of the embedding
  float logits_scale = 1;
  float logits_cap = 0;  // over 0: logits are cap * tanh(logit / cap)

  BlockNorms norms = BlockNorms::kBefore;
  NormOptions norm;                    // of every norm; update_scale is that of what a block adds
  LayerAttention attention;            // of every layer
  std::vector<LayerAttention> layers;  // where layers differ: instead, of each
  std::optional<DeltaNetOptions> delta_net;
  std::vector<bool> delta_layers;  // those that have it in place of attention; or none
  std::optional<ShortConvOptions> conv;
  std::vector<bool> conv_layers;  // likewise
  MlpOptions mlp;
  std::optional<ExpertOptions> experts;  // in place of the MLP
  std::vector<int> dense_layers;         // layers that have the MLP nevertheless
};

// The attention of each layer. Layers of equal rotary embedding and head size share their tables.
std::vector<LayerAttention> attention_of_layers(const LoadContext& context, const DecoderConfig& config);
LmHead make_head(const LoadContext& context, const DecoderConfig& config,
                 const VocabParallelEmbedding& embedding);

// Registers a family of decoders before main, by each of its architectures.
class DecoderRegistration {
 public:
  using ReadConfig = DecoderConfig (*)(const ModelConfig& config);
  using MakeModel = std::unique_ptr<Model> (*)(const ModelConfig& model, const DecoderConfig& config,
                                               const LoadContext& context);

  // make: a model of another kind, of what `read` gives.
  DecoderRegistration(std::initializer_list<const char*> architectures, ReadConfig read,
                      const FileLayout& layout = {}, MakeModel make = nullptr);
};

// The keys that Llama and the families after it share, with transformers' defaults for a family; what is left
// out is as Llama's.
struct DecoderDefaults {
  int vocab_size = 32000;
  int hidden_size = 4096;
  int intermediate_size = 11008;
  int num_layers = 32;
  int num_heads = 32;
  int num_kv_heads = 0;  // 0: as many as heads
  int max_positions = 2048;
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
// What GPT-2 and BLOOM share: LayerNorm, a GELU MLP without a gate, biases everywhere, keys of other names.
// hidden_size_key: that of the hidden size. Of the defaults the first two and the numbers of layers and heads
// count.
DecoderConfig read_gpt_like(const ModelConfig& config, const char* hidden_size_key,
                            const DecoderDefaults& defaults);

// Which layers are local by layer_types, or where that is absent by is_local(layer). local: the name of their
// type. Error of other types.
std::vector<bool> read_local_layers(const ModelConfig& config, int num_layers,
                                    const std::function<bool(int layer)>& is_local,
                                    const char* local = "sliding_attention");
// Every decoder_sparse_step-th layer has experts, but for mlp_only_layers; the others.
std::vector<int> read_dense_layers(const ModelConfig& config, int num_layers);
// sliding_window, or where that key is absent `fallback`; null, like 0, means none.
int read_window(const ModelConfig& config, int fallback);
// Of local layers where each type has rotary parameters of its own; else plain ones of `theta`.
ModelConfig::RotaryConfig read_local_rotary(const ModelConfig& config, double theta);
// What every layer has so far, with a window.
LayerAttention with_window(const DecoderConfig& decoder, int window);
// Layers that are local (read_local_layers) have the one attention, the others the other.
void set_layers(const ModelConfig& config, DecoderConfig& decoder,
                const std::function<bool(int layer)>& is_local, const LayerAttention& local,
                const LayerAttention& other);
// A pattern of local layers: the n-th is none, nor are its multiples.
std::function<bool(int layer)> all_but_every(int n);

}  // namespace quire
