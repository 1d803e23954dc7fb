// Gemma 2: both parts of a block between two norms of 1 + weight, capped scores and logits, a window in every
// other layer. Architecture and defaults: transformers, configuration_gemma2.py and modeling_gemma2.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_gemma_like(config, {.vocab_size = 256000,
                                                   .hidden_size = 2304,
                                                   .intermediate_size = 9216,
                                                   .num_layers = 26,
                                                   .num_heads = 8,
                                                   .num_kv_heads = 4,
                                                   .max_positions = 8192,
                                                   .head_dim = 256,
                                                   .tie_word_embeddings = true,
                                                   .activation = "gelu_pytorch_tanh"});
  decoder.attention.score_cap = config.get_float("attn_logit_softcapping", 50, kPositive);
  decoder.logits_cap = config.get_float("final_logit_softcapping", 30, kPositive);
  const int window = config.get_int("sliding_window", 4096, kPositions);
  set_layers(config, decoder, all_but_every(2), with_window(decoder, window), with_window(decoder, 0));
  return decoder;
}

const DecoderRegistration registration("Gemma2ForCausalLM", read_config);

}  // namespace
}  // namespace quire
