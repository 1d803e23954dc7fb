// Gemma 2: both parts of a block between two norms of 1 + weight, capped scores and logits, a window in every
// other layer. Gemma 3, its text part: norms over each head of q and k instead of caps, and five layers with
// a window and rotary angles of their own for each one without. Architecture and defaults: transformers,
// configuration_gemma2.py, configuration_gemma3.py and their models.
#include <cmath>

#include "models/decoder.h"

namespace quire {
namespace {

// The cap of scores or logits. 0: there is none, which config.json says by null, too.
float read_cap(const ModelConfig& config, const char* key, float fallback) {
  return config.is_null(key) ? 0 : config.get_float(key, fallback, kNonNegative);
}

// What they share; defaults: in what they differ.
DecoderConfig read_gemma(const ModelConfig& config, DecoderDefaults defaults) {
  if (config.get_bool("use_bidirectional_attention", false))
    config.fail_at("use_bidirectional_attention", "is true, which is not supported");
  defaults.hidden_size = 2304;
  defaults.intermediate_size = 9216;
  defaults.num_layers = 26;
  defaults.num_heads = 8;
  defaults.num_kv_heads = 4;
  defaults.head_dim = 256;
  defaults.tie_word_embeddings = true;
  defaults.activation = "gelu_pytorch_tanh";
  DecoderConfig decoder = read_llama_like(config, defaults);
  // What the file says is meant with its scaling.
  decoder.max_positions = config.get_int("max_position_embeddings", defaults.max_positions, kPositions);
  decoder.embedding_scale = std::sqrt(static_cast<float>(decoder.hidden_size));
  decoder.norm.weight_offset = 1;
  decoder.norms = BlockNorms::kAround;
  decoder.attention.scale = 1.0F / std::sqrt(config.get_float("query_pre_attn_scalar", 256, kPositive));
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  return decoder;
}

DecoderConfig read_gemma2(const ModelConfig& config) {
  DecoderConfig decoder = read_gemma(config, {.vocab_size = 256000, .max_positions = 8192});
  decoder.attention.score_cap = read_cap(config, "attn_logit_softcapping", 50);
  decoder.logits_cap = read_cap(config, "final_logit_softcapping", 30);
  const int window = config.get_int("sliding_window", 4096, kPositions);
  set_layers(config, decoder, all_but_every(2), with_window(decoder, window), with_window(decoder, 0));
  return decoder;
}

DecoderConfig read_gemma3(const ModelConfig& config) {
  DecoderConfig decoder = read_gemma(
      config,
      {.vocab_size = 262208, .max_positions = 131072, .rope_theta = 1000000, .rotary_of = "full_attention"});
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.score_cap = read_cap(config, "attn_logit_softcapping", 0);
  decoder.logits_cap = read_cap(config, "final_logit_softcapping", 0);
  const int pattern = config.get_int({"sliding_window_pattern", "_sliding_window_pattern"}, 6, kLayerCount);
  LayerAttention local = with_window(decoder, config.get_int("sliding_window", 4096, kPositions));
  local.rotary = read_local_rotary(config, config.get_double("rope_local_base_freq", 10000, kPositive));
  set_layers(config, decoder, all_but_every(pattern), local, with_window(decoder, 0));
  return decoder;
}

const DecoderRegistration gemma2({"Gemma2ForCausalLM"}, read_gemma2);
const DecoderRegistration gemma3({"Gemma3ForCausalLM"}, read_gemma3);
const DecoderRegistration multimodal({"Gemma3ForConditionalGeneration"}, read_gemma3, {.text_part = true});

}  // namespace
}  // namespace quire
