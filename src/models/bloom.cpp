// BLOOM: ALiBi instead of positions, LayerNorm (also over the embedding), a GELU MLP, biases everywhere; q, k
// and v of a head lie together. Architecture and defaults: transformers, configuration_bloom.py and
// modeling_bloom.py; Le Scao et al., 2022.
#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  if (config.get_bool("apply_residual_connection_post_layernorm", false))
    config.fail_at("apply_residual_connection_post_layernorm", "is true, which is not supported");
  DecoderConfig decoder;
  decoder.vocab_size = config.get_int("vocab_size", 250880, kVocabSize);
  decoder.hidden_size = config.get_int({"n_embed", "hidden_size"}, 64, kWidth);
  decoder.mlp.intermediate_size = 4 * decoder.hidden_size;
  decoder.num_layers = config.get_int({"n_layer", "num_hidden_layers"}, 2, kLayerCount);
  decoder.max_positions = config.get_int("seq_length", 2048, kPositions);
  decoder.tie_word_embeddings = config.get_bool("tie_word_embeddings", true);
  decoder.embedding_norm = true;
  decoder.norm = NormKind::kLayer;
  decoder.norm_eps = config.get_float("layer_norm_epsilon", 1e-5F, kPositive);
  decoder.mlp.activation = Activation::kGelu;
  decoder.mlp.gated = false;
  decoder.mlp.bias = true;
  AttentionOptions& attention = decoder.attention;
  attention.num_heads = attention.num_kv_heads =
      config.get_int({"n_head", "num_attention_heads"}, 8, kHeadCount);
  if (decoder.hidden_size % attention.num_heads != 0)
    config.fail_at("n_head", format_text("is {}, which does not divide n_embed {}", attention.num_heads,
                                         decoder.hidden_size));
  attention.head_dim = decoder.hidden_size / attention.num_heads;
  attention.scale = 1.0F / std::sqrt(static_cast<float>(attention.head_dim));
  attention.qkv_bias = attention.out_bias = true;
  attention.alibi = true;
  return decoder;
}

const RenamedWeights::Renames kRenames = {{"model.embed_tokens", "transformer.word_embeddings"},
                                          {"model.embed_norm", "transformer.word_embeddings_layernorm"},
                                          {"model.layers", "transformer.h"},
                                          {"model.norm", "transformer.ln_f"},
                                          {"self_attn", "self_attention"},
                                          {"q_proj", "query_key_value"},
                                          {"k_proj", "query_key_value"},
                                          {"v_proj", "query_key_value"},
                                          {"o_proj", "dense"},
                                          {"up_proj", "dense_h_to_4h"},
                                          {"down_proj", "dense_4h_to_h"}};

class BloomWeights final : public RenamedWeights {
 public:
  BloomWeights(WeightSource& inner, int num_heads) : RenamedWeights(inner, kRenames), num_heads_(num_heads) {}

  WeightGroup take_linear(std::string_view prefix, std::int64_t rows, std::int64_t cols) override {
    const int part = qkv_part(prefix);
    if (part < 0) return RenamedWeights::take_linear(prefix, rows, cols);
    return deinterleave(RenamedWeights::take_linear(prefix, 3 * rows, cols), num_heads_, 3, part);
  }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    const int part = qkv_part(name);
    if (part < 0) return RenamedWeights::take(name, shape);
    return deinterleave(RenamedWeights::take(name, {3 * shape[0]}), num_heads_, 3, part);
  }

 private:
  int num_heads_;
};

const DecoderRegistration registration("BloomForCausalLM", read_config, {},
                                       [](const DecoderConfig& config, WeightSource& weights) {
                                         return std::make_unique<BloomWeights>(weights,
                                                                               config.attention.num_heads);
                                       });

}  // namespace
}  // namespace quire
