#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "models/rotary_frequencies.h"

namespace quire {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";

NormOptions norm_options(const DecoderConfig& config) {
  return {.kind = config.norm, .eps = config.norm_eps, .update_scale = config.residual_scale};
}

NormOptions final_norm_options(const DecoderConfig& config) {
  NormOptions options = norm_options(config);
  options.output_scale = config.logits_scale;  // the head is linear
  return options;
}

LmHead make_head(const LoadContext& context, const DecoderConfig& config,
                 const VocabParallelEmbedding& embedding) {
  if (config.tie_word_embeddings)
    return LmHead(context, kHead, embedding, kEmbedding, config.vocab_size, config.hidden_size);
  return LmHead(context, kHead, config.vocab_size, config.hidden_size);
}

std::variant<Mlp, Experts> make_mlp(const LoadContext& context, int layer, const std::string& prefix,
                                    const DecoderConfig& config) {
  const auto& dense = config.dense_layers;
  if (config.experts && std::find(dense.begin(), dense.end(), layer) == dense.end()) {
    ExpertOptions options = *config.experts;
    options.hidden_size = config.hidden_size;
    return Experts(context, prefix, options);
  }
  MlpOptions options = config.mlp;
  options.hidden_size = config.hidden_size;
  return Mlp(context, prefix, options);
}

std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer); }

}  // namespace

DecoderModel::Layer::Layer(const LoadContext& context, int index, const DecoderConfig& config,
                           const AttentionOptions& options)
    : input_norm(context, layer_prefix(index) + ".input_layernorm", config.hidden_size, norm_options(config)),
      attention(context, layer_prefix(index) + ".self_attn", options),
      post_attention_norm(context, layer_prefix(index) + ".post_attention_layernorm", config.hidden_size,
                          norm_options(config)),
      mlp(make_mlp(context, index, layer_prefix(index) + ".mlp", config)) {}

DecoderModel::DecoderModel(const DecoderConfig& config, const LoadContext& context)
    : embedding_(context, kEmbedding, config.vocab_size, config.hidden_size, config.embedding_scale),
      final_norm_(context, "model.norm", config.hidden_size, final_norm_options(config)),
      head_(make_head(context, config, embedding_)),
      residual_(context.workspace.activation("residual", DType::kF32, config.hidden_size)),
      normed_(context.workspace.activation("normed", context.dtype, config.hidden_size)) {
  if (config.num_learned_positions > 0) {
    positions_.emplace(context, "model.embed_positions.weight", config.num_learned_positions,
                       config.hidden_size);
    position_rows_ = context.workspace.activation("positions", DType::kF32, config.hidden_size);
  }
  if (config.embedding_norm)
    embedding_norm_.emplace(context, "model.embed_norm", config.hidden_size, norm_options(config));
  AttentionOptions options = config.attention;
  options.hidden_size = config.hidden_size;
  options.norm_eps = config.norm_eps;
  if (config.rotary) {
    options.rotary = make_rotary_table(
        context, rotary_frequencies(*config.rotary, options.head_dim, context.max_model_len));
  }
  layers_.reserve(static_cast<std::size_t>(config.num_layers));
  for (int i = 0; i < config.num_layers; ++i) layers_.emplace_back(context, i, config, options);
}

Tensor DecoderModel::forward(const ModelInput& input) {
  const std::int64_t tokens = input.token_ids.dim(0);
  const Tensor residual = residual_.rows(0, tokens);
  const Tensor normed = normed_.rows(0, tokens);
  Tensor update;  // this rank's part of what the block before adds to the residual stream
  embedding_.forward(residual, input.token_ids);
  if (embedding_norm_) embedding_norm_->forward(residual, residual);
  if (positions_) {
    update = position_rows_.rows(0, tokens);
    positions_->forward_part(update, input.batch.positions);
  }
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (update.defined()) {
      layer.input_norm.forward(normed, residual, update);
    } else {
      layer.input_norm.forward(normed, residual);
    }
    update = layer.attention.forward(normed, input.cache[i], input.batch);
    layer.post_attention_norm.forward(normed, residual, update);
    update = std::visit([&](const auto& mlp) { return mlp.forward(normed); }, layer.mlp);
  }
  final_norm_.forward(normed, residual, update);
  return normed;
}

DecoderRegistration::DecoderRegistration(const std::string& architecture, ReadConfig read,
                                         std::vector<std::string> ignorable_endings, RenameWeights rename)
    : registration_(
          {architecture,
           [read](const ModelConfig& model) {
             const DecoderConfig config = read(model);
             return ModelSpec{.num_layers = config.num_layers,
                              .num_heads = config.attention.num_heads,
                              .num_kv_heads = config.attention.num_kv_heads,
                              .head_dim = config.attention.head_dim,
                              .hidden_size = config.hidden_size,
                              .vocab_size = config.vocab_size,
                              .max_model_len = config.max_positions,
                              .sliding_window = config.attention.window};
           },
           [read, rename](const ModelConfig& model, const LoadContext& context) -> std::unique_ptr<Model> {
             const DecoderConfig config = read(model);
             if (!rename) return std::make_unique<DecoderModel>(config, context);
             const std::unique_ptr<WeightSource> renamed = rename(config, context.weights);
             return std::make_unique<DecoderModel>(config, context.with_weights(*renamed));
           },
           std::move(ignorable_endings)}) {}

DecoderConfig read_llama_like(const ModelConfig& config, const DecoderDefaults& defaults) {
  DecoderConfig decoder;
  decoder.vocab_size = config.get_int("vocab_size", defaults.vocab_size, kVocabSize);
  decoder.hidden_size = config.get_int("hidden_size", defaults.hidden_size, kWidth);
  decoder.mlp.intermediate_size = config.get_int("intermediate_size", defaults.intermediate_size, kWidth);
  decoder.num_layers = config.get_int("num_hidden_layers", defaults.num_layers, kLayerCount);
  decoder.tie_word_embeddings = config.get_bool("tie_word_embeddings", defaults.tie_word_embeddings);
  decoder.norm_eps = config.get_float("rms_norm_eps", defaults.norm_eps, kPositive);

  AttentionOptions& attention = decoder.attention;
  attention.num_heads = config.get_int("num_attention_heads", defaults.num_heads, kHeadCount);
  attention.num_kv_heads =
      config.get_int("num_key_value_heads",
                     defaults.num_kv_heads > 0 ? defaults.num_kv_heads : attention.num_heads, kHeadCount);
  if (attention.num_heads % attention.num_kv_heads != 0) {
    config.fail_at("num_attention_heads", format_text("is {}, no multiple of num_key_value_heads {}",
                                                      attention.num_heads, attention.num_kv_heads));
  }
  attention.head_dim = config.get_int(
      "head_dim",
      defaults.head_dim > 0 ? defaults.head_dim : std::max(1, decoder.hidden_size / attention.num_heads),
      kHeadSize);
  attention.scale = 1.0F / std::sqrt(static_cast<float>(attention.head_dim));

  decoder.rotary = config.rotary(defaults.rope_theta);
  decoder.max_positions = scaled_max_positions(
      *decoder.rotary, config.get_int("max_position_embeddings", defaults.max_positions, kPositions));
  if (const auto act = config.get_string("hidden_act", "silu"); act != "silu")
    config.fail_at("hidden_act", format_text("is {}; only \"silu\" is supported", in_quotes(act)));
  return decoder;
}

int read_qwen_window(const ModelConfig& config, const DecoderConfig& decoder) {
  // A null window means none, a key that is absent the default.
  if (!config.get_bool("use_sliding_window", false) || config.is_null("sliding_window")) return 0;
  const std::vector<std::string> types = config.get_strings("layer_types");
  const char* key = types.empty() ? "max_window_layers" : "layer_types";
  int full_layers =
      decoder.num_layers - static_cast<int>(std::count(types.begin(), types.end(), "sliding_attention"));
  if (types.empty()) full_layers = std::min(config.get_int(key, 28, {.min = 0}), decoder.num_layers);
  if (full_layers == decoder.num_layers) return 0;
  if (full_layers != 0) {
    config.fail_at(
        key, format_text("gives {} of {} layers no window; windows in some layers only are not supported",
                         full_layers, decoder.num_layers));
  }
  return config.get_int("sliding_window", 4096, kPositions);
}

}  // namespace quire
