// Cohere 2 (Command R7B, Command A): attention and the MLP side by side behind one LayerNorm without bias;
// neighbouring dimensions rotate together in layers with a window, every fourth layer has neither window nor
// positions. Architecture and defaults: transformers, configuration_cohere2.py and modeling_cohere2.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 256000,
                                                   .hidden_size = 8192,
                                                   .intermediate_size = 22528,
                                                   .num_layers = 40,
                                                   .num_heads = 64,
                                                   .max_positions = 8192,
                                                   .norm_eps = 1e-5F,
                                                   .norm_eps_key = "layer_norm_eps",
                                                   .tie_word_embeddings = true});
  decoder.norms = BlockNorms::kShared;
  decoder.norm.kind = NormKind::kLayer;
  decoder.norm.bias = false;
  decoder.logits_scale = config.get_float("logit_scale", 0.0625F, kPositive);
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  const int window = read_window(config, 4096);
  const int pattern = config.get_int({"sliding_window_pattern", "_sliding_window_pattern"}, 4, kLayerCount);
  if (window == 0) decoder.attention.rotary.reset();
  LayerAttention global = with_window(decoder, 0);
  global.rotary.reset();
  set_layers(config, decoder, all_but_every(pattern), with_window(decoder, window), global);
  return decoder;
}

const DecoderRegistration text({"Cohere2ForCausalLM"}, read_config, {.neighbour_rotary = true});
const DecoderRegistration multimodal({"Cohere2VisionForConditionalGeneration"}, read_config,
                                     {.neighbour_rotary = true, .text_part = true});

}  // namespace
}  // namespace quire
