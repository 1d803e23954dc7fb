// GPT-2: learned positions, LayerNorm, a GELU MLP, biases everywhere; matrices lie transposed in its files,
// q, k and v as one. Architecture and defaults: transformers, configuration_gpt2.py and modeling_gpt2.py;
// Radford et al., 2019.
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.get_bool(key, false)) config.fail_at(key, "is true, which is not supported");
  }
  const auto act = config.get_string("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    config.fail_at("activation_function",
                   format_text("is {}; only \"gelu_new\" is supported", in_quotes(act)));
  DecoderConfig decoder;
  decoder.vocab_size = config.get_int("vocab_size", 50257, kVocabSize);
  decoder.hidden_size = config.get_int({"n_embd", "hidden_size"}, 768, kWidth);
  decoder.mlp.intermediate_size = config.get_int("n_inner", 4 * decoder.hidden_size, kWidth);
  decoder.num_layers = config.get_int({"n_layer", "num_hidden_layers"}, 12, kLayerCount);
  decoder.max_positions = decoder.num_learned_positions =
      config.get_int({"n_positions", "max_position_embeddings"}, 1024, kPositions);
  decoder.tie_word_embeddings = config.get_bool("tie_word_embeddings", true);
  decoder.norm = NormKind::kLayer;
  decoder.norm_eps = config.get_float("layer_norm_epsilon", 1e-5F, kPositive);
  decoder.mlp.activation = Activation::kGelu;
  decoder.mlp.gated = false;
  decoder.mlp.bias = true;
  AttentionOptions& attention = decoder.attention;
  attention.num_heads = attention.num_kv_heads =
      config.get_int({"n_head", "num_attention_heads"}, 12, kHeadCount);
  if (decoder.hidden_size % attention.num_heads != 0)
    config.fail_at("n_head", format_text("is {}, which does not divide n_embd {}", attention.num_heads,
                                         decoder.hidden_size));
  attention.head_dim = decoder.hidden_size / attention.num_heads;
  attention.scale = config.get_bool("scale_attn_weights", true)
                        ? 1.0F / std::sqrt(static_cast<float>(attention.head_dim))
                        : 1.0F;
  attention.qkv_bias = attention.out_bias = true;
  return decoder;
}

const RenamedWeights::Renames kRenames = {{"model.embed_tokens", "transformer.wte"},
                                          {"model.embed_positions", "transformer.wpe"},
                                          {"model.layers", "transformer.h"},
                                          {"model.norm", "transformer.ln_f"},
                                          {"input_layernorm", "ln_1"},
                                          {"post_attention_layernorm", "ln_2"},
                                          {"self_attn", "attn"},
                                          {"q_proj", "c_attn"},
                                          {"k_proj", "c_attn"},
                                          {"v_proj", "c_attn"},
                                          {"o_proj", "c_proj"},
                                          {"up_proj", "c_fc"},
                                          {"down_proj", "c_proj"}};

class Gpt2Weights final : public RenamedWeights {
 public:
  explicit Gpt2Weights(WeightSource& inner) : RenamedWeights(inner, kRenames) {}

  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    if (!prefix.ends_with("_proj")) return RenamedWeights::take_linear(prefix, rows, cols);
    const int part = qkv_part(prefix);
    WeightGroup stored = transpose(RenamedWeights::take_linear(prefix, cols, part < 0 ? rows : 3 * rows));
    return part < 0 ? stored : deinterleave(std::move(stored), 1, 3, part);
  }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const int part = qkv_part(name);
    if (part < 0) return RenamedWeights::take(name, shape);
    return deinterleave(RenamedWeights::take(name, {3 * shape[0]}), 1, 3, part);
  }
};

// attn.bias is the causal mask, not a bias.
const DecoderRegistration registration("GPT2LMHeadModel", read_config,
                                       {.endings = {".attn.bias", ".attn.masked_bias"}},
                                       [](const DecoderConfig&, WeightSource& weights) {
                                         return std::make_unique<Gpt2Weights>(weights);
                                       });

}  // namespace
}  // namespace quire
