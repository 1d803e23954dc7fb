#include "models/decoder.h"

#include <algorithm>
#include <cmath>
#include <variant>

#include "base/error.h"
#include "base/json.h"
#include "models/rotary.h"

namespace quire {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens";
constexpr char kHead[] = "lm_head";

std::variant<Mlp, Experts> make_mlp(const LoadContext& context, int layer, const std::string& prefix,
                                    const DecoderConfig& config) {
  const auto& dense = config.dense_layers;
  if (config.experts && std::ranges::find(dense, layer) == dense.end())
    return Experts(context, prefix, *config.experts);
  return Mlp(context, prefix, config.mlp);
}

std::variant<Attention, GatedDeltaNet, ShortConv> make_mixer(const LoadContext& context, int layer,
                                                             const std::string& prefix,
                                                             const DecoderConfig& config,
                                                             const AttentionOptions& attention) {
  const auto i = static_cast<std::size_t>(layer);
  if (config.delta_net && config.delta_layers[i])
    return GatedDeltaNet(context, prefix + "linear_attn", *config.delta_net);
  if (config.conv && config.conv_layers[i]) return ShortConv(context, prefix + "conv", *config.conv);
  return Attention(context, prefix + "self_attn", attention);
}

// With the hidden size in the options of each layer's parts.
DecoderConfig read_checked(DecoderRegistration::ReadConfig read, const ModelConfig& model) {
  DecoderConfig config = read(model);
  const bool has_silu =
      config.delta_net || (config.experts && config.experts->activation == Activation::kSilu);
  if (has_silu && config.mlp.activation != Activation::kSilu)
    model.fail_at("hidden_act", format_text("is no \"silu\", the only activation of {} that is supported",
                                            config.delta_net ? "Gated DeltaNet" : "routed experts"));
  config.mlp.hidden_size = config.hidden_size;
  if (config.experts) config.experts->hidden_size = config.hidden_size;
  if (config.delta_net) config.delta_net->hidden_size = config.hidden_size;
  if (config.conv) config.conv->hidden_size = config.hidden_size;
  return config;
}

// The norms of a block, by their names in a file; null: there is none.
struct NormNames {
  const char *attention, *after_attention, *mlp, *after_mlp;
};
constexpr NormNames kNormNames[] = {
    // by BlockNorms
    {"input_layernorm", nullptr, "post_attention_layernorm", nullptr},
    {nullptr, "post_attention_layernorm", nullptr, "post_feedforward_layernorm"},
    {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
     "post_feedforward_layernorm"},
    {"input_layernorm", nullptr, nullptr, nullptr}};

std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer) + "."; }

Norm make_norm(const LoadContext& context, int layer, const char* NormNames::*norm,
               const DecoderConfig& config) {
  const char* name = kNormNames[static_cast<std::size_t>(config.norms)].*norm;
  NormOptions options = config.norm;
  if (name == nullptr) options.kind = NormKind::kNone;
  return {context, layer_prefix(layer) + (name == nullptr ? "" : name), config.hidden_size, options};
}

Norm make_final_norm(const LoadContext& context, const DecoderConfig& config) {
  NormOptions options = config.norm;
  options.output_scale = config.logits_scale;  // the head is linear
  return {context, "model.norm", config.hidden_size, options};
}

IgnorableTensors ignorable(const FileLayout& layout) {
  IgnorableTensors tensors = {.endings = layout.unneeded, .beginnings = layout.left_out};
  tensors.endings.emplace_back(".rotary_emb.inv_freq");  // of older files, whatever the family
  if (layout.text_part)
    tensors.beginnings.insert(
        tensors.beginnings.end(),
        {"vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
         "visual.", "model.visual.", "model.audio_tower.", "model.vision_embedder.", "model.embed_vision.",
         "model.embed_audio."});
  return tensors;
}

// The model of a DecoderConfig. Layers ask for tensors by the names of Llama's checkpoints, such as
// "model.layers.3.self_attn.q_proj.weight".
class DecoderModel final : public Model {
 public:
  DecoderModel(const DecoderConfig& config, const LoadContext& context)
      : embedding_(context, kEmbedding, config.vocab_size, config.hidden_size, config.embedding_scale),
        final_norm_(make_final_norm(context, config)),
        head_(make_head(context, config, embedding_)),
        residual_(context.workspace.activation("residual", DType::kF32, config.hidden_size)),
        normed_(context.workspace.activation("normed", context.dtype, config.hidden_size)) {
    if (config.num_learned_positions > 0) {
      positions_.emplace(context, "model.embed_positions", config.num_learned_positions, config.hidden_size);
      position_rows_ = context.workspace.activation("positions", DType::kF32, config.hidden_size);
    }
    if (config.embedding_norm)
      embedding_norm_.emplace(context, "model.embed_norm", config.hidden_size, config.norm);
    if (config.norms == BlockNorms::kShared)
      unread_ = context.workspace.activation("unread", context.dtype, config.hidden_size);
    const std::vector<LayerAttention> attention = attention_of_layers(context, config);
    layers_.reserve(attention.size());
    for (int i = 0; i < config.num_layers; ++i) {
      context.states.begin_layer(i);
      layers_.push_back({.attention_norm = make_norm(context, i, &NormNames::attention, config),
                         .mixer = make_mixer(context, i, layer_prefix(i), config, attention[i]),
                         .after_attention_norm = make_norm(context, i, &NormNames::after_attention, config),
                         .mlp_norm = make_norm(context, i, &NormNames::mlp, config),
                         .after_mlp_norm = make_norm(context, i, &NormNames::after_mlp, config),
                         .mlp = make_mlp(context, i, layer_prefix(i) + "mlp", config)});
      if (context.on_layer) context.on_layer(layers_.size(), attention.size());
    }
  }

  Tensor forward(const Step& step) override {
    const std::int64_t tokens = step.token_ids.dim(0);
    const Tensor residual = residual_.rows(0, tokens);
    const Tensor normed = normed_.rows(0, tokens);
    embedding_.forward(residual, step.token_ids);
    if (embedding_norm_) embedding_norm_->forward(residual, residual);
    Update update;
    if (positions_) {
      update.values = position_rows_.rows(0, tokens);
      positions_->forward_part(update.values, step.positions);
    }
    for (const Layer& layer : layers_) {
      layer.attention_norm.forward(normed, residual, update);
      update = layer.after_attention_norm.forward_sum(
          std::visit([&](const auto& mixer) { return mixer.forward(normed, step); }, layer.mixer));
      layer.mlp_norm.forward(unread_.defined() ? unread_.rows(0, tokens) : normed, residual, update);
      update = layer.after_mlp_norm.forward_sum(
          std::visit([&](const auto& mlp) { return mlp.forward(normed); }, layer.mlp));
    }
    final_norm_.forward(normed, residual, update);
    return normed;
  }
  const LmHead& head() const override { return head_; }

 private:
  struct Layer {
    // Some of the norms do nothing (NormKind::kNone).
    Norm attention_norm;
    std::variant<Attention, GatedDeltaNet, ShortConv> mixer;
    Norm after_attention_norm;
    Norm mlp_norm;
    Norm after_mlp_norm;
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

}  // namespace

LmHead make_head(const LoadContext& context, const DecoderConfig& config,
                 const VocabParallelEmbedding& embedding) {
  if (config.tie_word_embeddings)
    return LmHead(context, kHead, embedding, kEmbedding, config.vocab_size, config.logits_cap);
  return LmHead(context, kHead, config.vocab_size, config.hidden_size, config.logits_cap);
}

std::vector<LayerAttention> attention_of_layers(const LoadContext& context, const DecoderConfig& config) {
  std::vector<LayerAttention> layers = config.layers;
  layers.resize(config.num_layers, config.attention);
  for (auto layer = layers.begin(); layer != layers.end(); ++layer) {
    layer->hidden_size = config.hidden_size;
    layer->norm = config.norm;
    if (!layer->rotary) continue;
    const auto same = std::find_if(layers.begin(), layer, [&](const LayerAttention& other) {
      return other.rotary == layer->rotary && other.head_dim == layer->head_dim;
    });
    layer->tables =
        same == layer ? make_rotary_tables(context, *layer->rotary, layer->head_dim) : same->tables;
  }
  return layers;
}

DecoderRegistration::DecoderRegistration(std::initializer_list<const char*> architectures, ReadConfig read,
                                         const FileLayout& layout, MakeModel make) {
  ModelFamily family;
  family.describe = [read](const ModelConfig& model) {
    const DecoderConfig config = read_checked(read, model);
    return ModelSpec{.num_layers = config.num_layers,
                     .num_heads = config.attention.num_heads,
                     .num_kv_heads = config.attention.num_kv_heads,
                     .head_dim = config.attention.head_dim,
                     .hidden_size = config.hidden_size,
                     .vocab_size = config.vocab_size,
                     .max_model_len = config.max_positions};
  };
  family.load = [read, layout, make](const ModelConfig& model,
                                     const LoadContext& context) -> std::unique_ptr<Model> {
    const DecoderConfig config = read_checked(read, model);
    const std::unique_ptr<WeightSource> weights = read_layout(layout, config, context.weights);
    const LoadContext with_layout = context.with_weights(*weights);
    if (make != nullptr) return make(model, config, with_layout);
    return std::make_unique<DecoderModel>(config, with_layout);
  };
  family.ignorable = ignorable(layout);
  for (const char* const architecture : architectures) register_family(architecture, family);
}

Activation read_activation(const ModelConfig& config, const char* fallback) {
  constexpr std::pair<std::string_view, Activation> kNames[] = {{"silu", Activation::kSilu},
                                                                {"swish", Activation::kSilu},
                                                                {"gelu_pytorch_tanh", Activation::kGelu},
                                                                {"gelu_new", Activation::kGelu},
                                                                {"relu2", Activation::kRelu2}};
  const char* key = config.contains("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = config.get_string(key, fallback);
  for (const auto& [known, activation] : kNames)
    if (name == known) return activation;
  config.fail_at(key, format_text("is {}; only \"silu\", \"gelu_pytorch_tanh\" and \"relu2\" are supported",
                                  in_quotes(name)));
}

DecoderConfig read_llama_like(const ModelConfig& config, const DecoderDefaults& defaults) {
  DecoderConfig decoder;
  decoder.vocab_size = config.get_int("vocab_size", defaults.vocab_size, kVocabSize);
  decoder.hidden_size = config.get_int("hidden_size", defaults.hidden_size, kWidth);
  decoder.mlp.intermediate_size = config.get_int("intermediate_size", defaults.intermediate_size, kWidth);
  decoder.num_layers = config.get_int("num_hidden_layers", defaults.num_layers, kLayerCount);
  decoder.tie_word_embeddings = config.ties_word_embeddings(defaults.tie_word_embeddings);
  decoder.norm.eps = config.get_float(defaults.norm_eps_key, defaults.norm_eps, kPositive);

  LayerAttention& attention = decoder.attention;
  attention.num_heads = config.get_int("num_attention_heads", defaults.num_heads, kHeadCount);
  const bool has_default = defaults.num_kv_heads > 0 && !config.is_null("num_key_value_heads");
  attention.num_kv_heads = config.get_int(
      "num_key_value_heads", has_default ? defaults.num_kv_heads : attention.num_heads, kHeadCount);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    config.fail_at("num_attention_heads", format_text("is {}, no multiple of num_key_value_heads {}",
                                                      attention.num_heads, attention.num_kv_heads));
  }
  const int even_share = std::max(1, decoder.hidden_size / attention.num_heads);
  const bool has_size = defaults.head_dim > 0 && !config.is_null("head_dim");
  attention.head_dim = config.get_int("head_dim", has_size ? defaults.head_dim : even_share, kHeadSize);
  attention.scale = 1.0F / std::sqrt(static_cast<float>(attention.head_dim));

  attention.rotary = config.rotary(defaults.rope_theta, defaults.rotary_of, defaults.partial_rotary_factor);
  if (!defaults.scales_queries) attention.rotary->query_scaling_beta = 0;
  decoder.max_positions = scaled_max_positions(
      *attention.rotary, config.get_int("max_position_embeddings", defaults.max_positions, kPositions));
  decoder.mlp.activation = read_activation(config, defaults.activation);
  return decoder;
}

DecoderConfig read_gpt_like(const ModelConfig& config, const char* hidden_size_key,
                            const DecoderDefaults& defaults) {
  DecoderConfig decoder;
  decoder.vocab_size = config.get_int("vocab_size", defaults.vocab_size, kVocabSize);
  decoder.hidden_size = config.get_int({hidden_size_key, "hidden_size"}, defaults.hidden_size, kWidth);
  decoder.num_layers = config.get_int({"n_layer", "num_hidden_layers"}, defaults.num_layers, kLayerCount);
  decoder.tie_word_embeddings = config.get_bool("tie_word_embeddings", true);
  decoder.norm.kind = NormKind::kLayer;
  decoder.norm.eps = config.get_float("layer_norm_epsilon", 1e-5F, kPositive);
  decoder.mlp = {.intermediate_size = 4 * std::int64_t{decoder.hidden_size},
                 .activation = Activation::kGelu,
                 .gated = false,
                 .bias = true};
  AttentionOptions& attention = decoder.attention;
  attention.num_heads = attention.num_kv_heads =
      config.get_int({"n_head", "num_attention_heads"}, defaults.num_heads, kHeadCount);
  if (decoder.hidden_size % attention.num_heads != 0)
    config.fail_at("n_head", format_text("is {}, which does not divide {} {}", attention.num_heads,
                                         hidden_size_key, decoder.hidden_size));
  attention.head_dim = decoder.hidden_size / attention.num_heads;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(attention.head_dim));
  attention.qkv_bias = attention.out_bias = true;
  return decoder;
}

std::vector<bool> read_local_layers(const ModelConfig& config, int num_layers,
                                    const std::function<bool(int layer)>& is_local, const char* local_type) {
  const std::vector<std::string> types = config.get_strings("layer_types");
  if (!types.empty() && std::ssize(types) != num_layers)
    config.fail_at("layer_types", format_text("names {} layers; there are {}", types.size(), num_layers));
  std::vector<bool> local;
  for (int i = 0; types.empty() && i < num_layers; ++i) local.push_back(is_local(i));
  for (const std::string& type : types) {
    local.push_back(type == local_type);
    if (!local.back() && type != "full_attention") {
      config.fail_at("layer_types", format_text("has {}; only \"full_attention\" and {} are supported",
                                                in_quotes(type), in_quotes(local_type)));
    }
  }
  return local;
}

std::vector<int> read_dense_layers(const ModelConfig& config, int num_layers) {
  std::vector<int> dense = config.get_ints("mlp_only_layers", {.min = 0});
  const int step = config.get_int("decoder_sparse_step", 1);
  for (int i = 0; i < num_layers; ++i)
    if ((i + 1) % step != 0) dense.push_back(i);
  return dense;
}

int read_window(const ModelConfig& config, int fallback) {
  return config.is_null("sliding_window") ? 0 : config.get_int("sliding_window", fallback, kPositions);
}

ModelConfig::RotaryConfig read_local_rotary(const ModelConfig& config, double theta) {
  return config.has_rotary_of("sliding_attention") ? config.rotary(theta, "sliding_attention")
                                                   : ModelConfig::RotaryConfig{.theta = theta};
}

LayerAttention with_window(const DecoderConfig& decoder, int window) {
  LayerAttention layer = decoder.attention;
  layer.window = window;
  return layer;
}

void set_layers(const ModelConfig& config, DecoderConfig& decoder,
                const std::function<bool(int layer)>& is_local, const LayerAttention& local,
                const LayerAttention& other) {
  for (const bool layer_is_local : read_local_layers(config, decoder.num_layers, is_local))
    decoder.layers.push_back(layer_is_local ? local : other);
}

std::function<bool(int layer)> all_but_every(int n) {
  return [n](int layer) { return (layer + 1) % n != 0; };
}

}  // namespace quire
