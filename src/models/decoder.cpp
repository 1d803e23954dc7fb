#include "models/decoder.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "models/rotary_frequencies.h"

namespace quire {
namespace {

constexpr char kEmbedding[] = "model.embed_tokens";
constexpr char kHead[] = "lm_head";

NormOptions norm_options(const DecoderConfig& config) {
  return {.kind = config.norm,
          .eps = config.norm_eps,
          .update_scale = config.residual_scale,
          .weight_offset = config.norm_offset};
}

NormOptions final_norm_options(const DecoderConfig& config) {
  NormOptions options = norm_options(config);
  options.output_scale = config.logits_scale;  // the head is linear
  return options;
}

LmHead make_head(const LoadContext& context, const DecoderConfig& config,
                 const VocabParallelEmbedding& embedding) {
  if (config.tie_word_embeddings)
    return LmHead(context, kHead, embedding, kEmbedding, config.vocab_size, config.logits_cap);
  return LmHead(context, kHead, config.vocab_size, config.hidden_size, config.logits_cap);
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

// The rotary table of a layer; `tables` has those made so far.
Tensor rotary_table(const LoadContext& context, const LayerAttention& attention,
                    std::vector<std::pair<LayerAttention, Tensor>>& tables) {
  for (const auto& [other, table] : tables) {
    if (other.rotary == attention.rotary && other.options.head_dim == attention.options.head_dim)
      return table;
  }
  const Tensor table = make_rotary_table(
      context, rotary_frequencies(*attention.rotary, attention.options.head_dim, context.max_model_len));
  tables.emplace_back(attention, table);
  return table;
}

DecoderConfig read_checked(DecoderRegistration::ReadConfig read, const ModelConfig& model) {
  DecoderConfig config = read(model);
  if (config.experts && config.mlp.activation != Activation::kSilu)
    model.fail_at("hidden_act", "is no \"silu\", the only activation of routed experts that is supported");
  return config;
}

// What a block adds to the residual stream.
struct Update {
  Tensor values;       // undefined: nothing
  bool whole = false;  // each rank has it as a whole; or its part of a sum

  static Update of(const Tensor& part, const std::optional<Norm>& norm) {
    if (norm) norm->forward_sum(part);
    return {part, norm.has_value()};
  }
  // normed = the residual stream with it, normed.
  void add_to(const Tensor& residual, const Tensor& normed, const Norm& norm) const {
    if (!values.defined()) return norm.forward(normed, residual);
    whole ? norm.forward_whole(normed, residual, values) : norm.forward(normed, residual, values);
  }
};

std::string layer_prefix(int layer) { return "model.layers." + std::to_string(layer); }

Norm layer_norm(const LoadContext& context, int layer, const char* name, const DecoderConfig& config) {
  return {context, layer_prefix(layer) + name, config.hidden_size, norm_options(config)};
}

std::optional<Norm> norm_after(const LoadContext& context, int layer, const char* name,
                               const DecoderConfig& config) {
  if (!config.norms_after) return std::nullopt;
  return layer_norm(context, layer, name, config);
}

}  // namespace

DecoderModel::Layer::Layer(const LoadContext& context, int index, const DecoderConfig& config,
                           const AttentionOptions& options)
    : attention_norm(layer_norm(context, index, ".input_layernorm", config)),
      attention(context, layer_prefix(index) + ".self_attn", options),
      after_attention_norm(norm_after(context, index, ".post_attention_layernorm", config)),
      mlp_norm(layer_norm(context, index,
                          config.norms_after ? ".pre_feedforward_layernorm" : ".post_attention_layernorm",
                          config)),
      after_mlp_norm(norm_after(context, index, ".post_feedforward_layernorm", config)),
      mlp(make_mlp(context, index, layer_prefix(index) + ".mlp", config)) {}

DecoderModel::DecoderModel(const DecoderConfig& config, const LoadContext& context)
    : embedding_(context, kEmbedding, config.vocab_size, config.hidden_size, config.embedding_scale),
      final_norm_(context, "model.norm", config.hidden_size, final_norm_options(config)),
      head_(make_head(context, config, embedding_)),
      residual_(context.workspace.activation("residual", DType::kF32, config.hidden_size)),
      normed_(context.workspace.activation("normed", context.dtype, config.hidden_size)) {
  if (config.num_learned_positions > 0) {
    positions_.emplace(context, "model.embed_positions", config.num_learned_positions, config.hidden_size);
    position_rows_ = context.workspace.activation("positions", DType::kF32, config.hidden_size);
  }
  if (config.embedding_norm)
    embedding_norm_.emplace(context, "model.embed_norm", config.hidden_size, norm_options(config));
  const LayerAttention common = {config.attention, config.rotary};
  std::vector<std::pair<LayerAttention, Tensor>> tables;  // layers of equal angles share one
  layers_.reserve(static_cast<std::size_t>(config.num_layers));
  for (int i = 0; i < config.num_layers; ++i) {
    const LayerAttention& attention =
        config.layers.empty() ? common : config.layers[static_cast<std::size_t>(i)];
    AttentionOptions options = attention.options;
    options.hidden_size = config.hidden_size;
    options.norm_eps = config.norm_eps;
    options.norm_offset = config.norm_offset;
    if (attention.rotary) options.rotary = rotary_table(context, attention, tables);
    layers_.emplace_back(context, i, config, options);
  }
}

Tensor DecoderModel::forward(const Step& step) {
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
    update.add_to(residual, normed, layer.attention_norm);
    update = Update::of(layer.attention.forward(normed, step), layer.after_attention_norm);
    update.add_to(residual, normed, layer.mlp_norm);
    update = Update::of(std::visit([&](const auto& mlp) { return mlp.forward(normed); }, layer.mlp),
                        layer.after_mlp_norm);
  }
  update.add_to(residual, normed, final_norm_);
  return normed;
}

DecoderRegistration::DecoderRegistration(const std::string& architecture, ReadConfig read,
                                         IgnorableTensors ignorable, RenameWeights rename)
    : registration_(
          {architecture,
           [read](const ModelConfig& model) {
             const DecoderConfig config = read_checked(read, model);
             return ModelSpec{.num_layers = config.num_layers,
                              .num_heads = config.attention.num_heads,
                              .num_kv_heads = config.attention.num_kv_heads,
                              .head_dim = config.attention.head_dim,
                              .hidden_size = config.hidden_size,
                              .vocab_size = config.vocab_size,
                              .max_model_len = config.max_positions};
           },
           [read, rename](const ModelConfig& model, const LoadContext& context) -> std::unique_ptr<Model> {
             const DecoderConfig config = read_checked(read, model);
             if (!rename) return std::make_unique<DecoderModel>(config, context);
             const std::unique_ptr<WeightSource> renamed = rename(config, context.weights);
             return std::make_unique<DecoderModel>(config, context.with_weights(*renamed));
           },
           std::move(ignorable)}) {}

Activation read_activation(const ModelConfig& config, const char* fallback) {
  constexpr std::pair<std::string_view, Activation> kNames[] = {{"silu", Activation::kSilu},
                                                                {"swish", Activation::kSilu},
                                                                {"gelu_pytorch_tanh", Activation::kGelu},
                                                                {"gelu_new", Activation::kGelu}};
  const char* key = config.contains("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name = config.get_string(key, fallback);
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  config.fail_at(
      key, format_text("is {}; only \"silu\" and \"gelu_pytorch_tanh\" are supported", in_quotes(name)));
}

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

  decoder.rotary = config.rotary(defaults.rope_theta, defaults.rotary_of);
  decoder.max_positions = scaled_max_positions(
      *decoder.rotary, config.get_int("max_position_embeddings", defaults.max_positions, kPositions));
  decoder.mlp.activation = read_activation(config, defaults.activation);
  return decoder;
}

DecoderConfig read_gemma_like(const ModelConfig& config, const DecoderDefaults& defaults) {
  if (config.get_bool("use_bidirectional_attention", false))
    config.fail_at("use_bidirectional_attention", "is true, which is not supported");
  DecoderConfig decoder = read_llama_like(config, defaults);
  // What the file says is meant with its scaling.
  decoder.max_positions = config.get_int("max_position_embeddings", defaults.max_positions, kPositions);
  decoder.embedding_scale = std::sqrt(static_cast<float>(decoder.hidden_size));
  decoder.norm_offset = 1;
  decoder.norms_after = true;
  decoder.attention.scale = 1.0F / std::sqrt(config.get_float("query_pre_attn_scalar", 256, kPositive));
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  return decoder;
}

std::vector<bool> read_local_layers(const ModelConfig& config, int num_layers,
                                    const std::function<bool(int layer)>& is_local) {
  const std::vector<std::string> types = config.get_strings("layer_types");
  if (!types.empty() && std::ssize(types) != num_layers)
    config.fail_at("layer_types", format_text("names {} layers; there are {}", types.size(), num_layers));
  std::vector<bool> local;
  for (int i = 0; i < num_layers; ++i) {
    if (types.empty()) {
      local.push_back(is_local(i));
      continue;
    }
    const std::string& type = types[static_cast<std::size_t>(i)];
    if (type != "sliding_attention" && type != "full_attention") {
      config.fail_at("layer_types", format_text("has {}; only \"full_attention\" and \"sliding_attention\" "
                                                "are supported",
                                                in_quotes(type)));
    }
    local.push_back(type == "sliding_attention");
  }
  return local;
}

void set_local_layers(DecoderConfig& decoder, const std::vector<bool>& is_local, int window,
                      const std::optional<ModelConfig::RotaryConfig>& rotary) {
  for (const bool local : is_local) {
    LayerAttention& layer = decoder.layers.emplace_back(decoder.attention, decoder.rotary);
    if (!local) continue;
    layer.options.window = window;
    if (rotary) layer.rotary = rotary;
  }
}

void read_qwen_windows(const ModelConfig& config, DecoderConfig& decoder) {
  // A null window means none, a key that is absent the default.
  if (!config.get_bool("use_sliding_window", false) || config.is_null("sliding_window")) return;
  const int first = config.get_int("max_window_layers", 28, {.min = 0});
  set_local_layers(decoder,
                   read_local_layers(config, decoder.num_layers, [&](int layer) { return layer >= first; }),
                   config.get_int("sliding_window", 4096, kPositions));
}

int qkv_part(std::string_view name) {
  constexpr std::string_view kAttention = ".self_attn.";
  const std::size_t place = name.find(kAttention);
  return place == name.npos ? -1
                            : static_cast<int>(std::string_view("qkv").find(name[place + kAttention.size()]));
}

// Files have the prefix before or behind "model.".
std::unique_ptr<WeightSource> text_part(WeightSource& weights) {
  static const RenamedWeights::Renames kOuter = {{"model.", "language_model.model."},
                                                 {"lm_head.", "language_model.lm_head."}};
  static const RenamedWeights::Renames kInner = {{"model.", "model.language_model."}};
  const bool inner = weights.contains("model.language_model.embed_tokens.weight");
  return std::make_unique<RenamedWeights>(weights, inner ? kInner : kOuter);
}

}  // namespace quire
