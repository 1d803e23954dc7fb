// ERNIE 4.5, dense: as Llama, with neighbouring dimensions that rotate together. Architecture and defaults:
// transformers, configuration_ernie4_5.py and modeling_ernie4_5.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 103424,
                                                   .hidden_size = 1024,
                                                   .intermediate_size = 3072,
                                                   .num_layers = 18,
                                                   .num_heads = 16,
                                                   .num_kv_heads = 2,
                                                   .max_positions = 131072,
                                                   .head_dim = 128,
                                                   .norm_eps = 1e-5F,
                                                   .rope_theta = 500000,
                                                   .tie_word_embeddings = true});
  decoder.attention.qkv_bias = decoder.attention.out_bias = decoder.mlp.bias =
      config.get_bool("use_bias", false);
  return decoder;
}

// The second is the name in older files.
const DecoderRegistration registration({"Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"}, read_config,
                                       {.neighbour_rotary = true});

}  // namespace
}  // namespace quire
