// Gemma 3, its text part: as Gemma 2, with norms over each head of q and k instead of caps, and five layers
// with a window and rotary angles of their own for each one without. Architecture and defaults: transformers,
// configuration_gemma3.py and modeling_gemma3.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_gemma_like(config, {.vocab_size = 262208,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .num_layers = 26,
                                                   .num_heads = 8,
                                                   .num_kv_heads = 4,
                                                   .max_positions = 131072,
                                                   .head_dim = 256,
                                                   .rope_theta = 1000000,
                                                   .tie_word_embeddings = true,
                                                   .activation = "gelu_pytorch_tanh",
                                                   .rotary_of = "full_attention"});
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.score_cap = config.get_float("attn_logit_softcapping", 0, kNonNegative);
  decoder.logits_cap = config.get_float("final_logit_softcapping", 0, kNonNegative);
  const int pattern = config.get_int({"sliding_window_pattern", "_sliding_window_pattern"}, 6, kLayerCount);
  LayerAttention local = with_window(decoder, config.get_int("sliding_window", 4096, kPositions));
  local.rotary = read_local_rotary(config, config.get_double("rope_local_base_freq", 10000, kPositive));
  set_layers(config, decoder, all_but_every(pattern), local, with_window(decoder, 0));
  return decoder;
}

const DecoderRegistration text("Gemma3ForCausalLM", read_config);
const DecoderRegistration multimodal("Gemma3ForConditionalGeneration", read_config, {.text_part = true});

}  // namespace
}  // namespace quire
