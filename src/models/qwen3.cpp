// Qwen3, dense: grouped-query attention with an RMSNorm over each head of q and k, gated MLP, RMSNorm before
// both. Architecture and defaults: transformers, configuration_qwen3.py and modeling_qwen3.py.
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "layers/attention.h"
#include "layers/embedding.h"
#include "layers/mlp.h"
#include "layers/norm.h"
#include "models/model.h"
#include "models/rotary_frequencies.h"

namespace quire {
namespace {

struct Qwen3Config {
  int vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim;
  int max_position_embeddings;
  float norm_eps;
  bool tie_word_embeddings, attention_bias;
  ModelConfig::RotaryConfig rotary;

  explicit Qwen3Config(const ModelConfig& config)
      : vocab_size(config.get_int("vocab_size", 151936, kVocabSize)),
        hidden_size(config.get_int("hidden_size", 4096, kWidth)),
        intermediate_size(config.get_int("intermediate_size", 22016, kWidth)),
        num_layers(config.get_int("num_hidden_layers", 32, kLayerCount)),
        num_heads(config.get_int("num_attention_heads", 32, kHeadCount)),
        num_kv_heads(config.get_int("num_key_value_heads", 32, kHeadCount)),
        head_dim(config.get_int("head_dim", 128, kHeadSize)),
        max_position_embeddings(config.get_int("max_position_embeddings", 32768, kPositions)),
        norm_eps(static_cast<float>(config.get_double("rms_norm_eps", 1e-6, kPositive))),
        tie_word_embeddings(config.get_bool("tie_word_embeddings", false)),
        attention_bias(config.get_bool("attention_bias", false)),
        rotary(config.rotary(10000.0)) {
    if (const auto act = config.get_string("hidden_act", "silu"); act != "silu") {
      config.fail_at("hidden_act", format_text("is {}; only \"silu\" is supported", in_quotes(act)));
    }
    if (config.get_bool("use_sliding_window", false)) {
      config.fail_at("use_sliding_window",
                     "is true; sliding windows are not supported for this architecture");
    }
    if (num_heads % num_kv_heads != 0) {
      config.fail_at("num_attention_heads",
                     format_text("is {}, no multiple of num_key_value_heads {}", num_heads, num_kv_heads));
    }
  }
};

ModelSpec read_spec(const ModelConfig& config) {
  const Qwen3Config c(config);
  return {c.num_layers,
          c.num_heads,
          c.num_kv_heads,
          c.head_dim,
          c.hidden_size,
          c.vocab_size,
          scaled_max_positions(c.rotary, c.max_position_embeddings)};
}

struct DecoderLayer {
  RmsNorm input_norm;
  Attention attention;
  RmsNorm post_attention_norm;
  GatedMlp mlp;

  DecoderLayer(const LoadContext& context, const std::string& prefix, const Qwen3Config& config,
               const AttentionOptions& attention_options)
      : input_norm(context, prefix + ".input_layernorm", config.hidden_size, config.norm_eps),
        attention(context, prefix + ".self_attn", attention_options),
        post_attention_norm(context, prefix + ".post_attention_layernorm", config.hidden_size,
                            config.norm_eps),
        mlp(context, prefix + ".mlp", config.hidden_size, config.intermediate_size) {}
};

AttentionOptions attention_options(const LoadContext& context, const Qwen3Config& config) {
  AttentionOptions options;
  options.hidden_size = config.hidden_size;
  options.num_heads = config.num_heads;
  options.num_kv_heads = config.num_kv_heads;
  options.head_dim = config.head_dim;
  options.scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  options.qkv_bias = config.attention_bias;
  options.out_bias = config.attention_bias;
  options.qk_norm = true;
  options.norm_eps = config.norm_eps;
  options.rotary = make_rotary_table(context, rotary_frequencies(config.rotary, config.head_dim));
  return options;
}

LmHead make_head(const LoadContext& context, const Qwen3Config& config,
                 const VocabParallelEmbedding& embedding) {
  if (config.tie_word_embeddings) {
    return LmHead(context, "lm_head.weight", embedding, "model.embed_tokens.weight", config.vocab_size,
                  config.hidden_size);
  }
  return LmHead(context, "lm_head.weight", config.vocab_size, config.hidden_size);
}

class Qwen3 : public Model {
 public:
  Qwen3(const Qwen3Config& config, const LoadContext& context)
      : embedding_(context, "model.embed_tokens.weight", config.vocab_size, config.hidden_size),
        final_norm_(context, "model.norm", config.hidden_size, config.norm_eps),
        head_(make_head(context, config, embedding_)),
        residual_(context.workspace.activation("residual", DType::kF32, config.hidden_size)),
        normed_(context.workspace.activation("normed", context.dtype, config.hidden_size)) {
    const AttentionOptions options = attention_options(context, config);
    layers_.reserve(static_cast<std::size_t>(config.num_layers));
    for (int i = 0; i < config.num_layers; ++i) {
      layers_.emplace_back(context, "model.layers." + std::to_string(i), config, options);
    }
  }

  Tensor forward(const ModelInput& input) override {
    const std::int64_t tokens = input.token_ids.dim(0);
    const Tensor residual = residual_.rows(0, tokens);
    const Tensor normed = normed_.rows(0, tokens);
    embedding_.forward(residual, input.token_ids);
    Tensor update;  // what the block before adds to the residual stream
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const DecoderLayer& layer = layers_[i];
      if (i == 0) {
        layer.input_norm.forward(normed, residual);
      } else {
        layer.input_norm.forward(normed, residual, update);
      }
      update = layer.attention.forward(normed, input.cache[i], input.batch);
      layer.post_attention_norm.forward(normed, residual, update);
      update = layer.mlp.forward(normed);
    }
    final_norm_.forward(normed, residual, update);
    return normed;
  }

  Tensor compute_logits(const Tensor& hidden) override { return head_.forward(hidden); }

 private:
  VocabParallelEmbedding embedding_;
  std::vector<DecoderLayer> layers_;
  RmsNorm final_norm_;
  LmHead head_;
  Tensor residual_, normed_;
};

const ModelRegistration registration({"Qwen3ForCausalLM",
                                      read_spec,
                                      [](const ModelConfig& config,
                                         const LoadContext& context) -> std::unique_ptr<Model> {
                                        return std::make_unique<Qwen3>(Qwen3Config(config), context);
                                      },
                                      {}});

}  // namespace
}  // namespace quire
