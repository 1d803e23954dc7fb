// StarCoder2: as Llama, with LayerNorm, a GELU MLP without a gate, biases everywhere and a window in some.
// Architecture and defaults: transformers, configuration_starcoder2.py and modeling_starcoder2.py; Lozhkov et
// al., "StarCoder 2 and The Stack v2", 2024.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 49152,
                                                   .hidden_size = 3072,
                                                   .intermediate_size = 12288,
                                                   .num_layers = 30,
                                                   .num_heads = 24,
                                                   .num_kv_heads = 2,
                                                   .max_positions = 4096,
                                                   .norm_eps = 1e-5F,
                                                   .norm_eps_key = "norm_epsilon",
                                                   .tie_word_embeddings = true,
                                                   .activation = "gelu_pytorch_tanh"});
  decoder.norm.kind = NormKind::kLayer;
  decoder.mlp.gated = false;
  decoder.mlp.bias = decoder.attention.qkv_bias = decoder.attention.out_bias =
      config.get_bool("use_bias", true);
  decoder.attention.window = config.get_int("sliding_window", 0, kPositions);
  return decoder;
}

const DecoderRegistration registration({"Starcoder2ForCausalLM"}, read_config,
                                       {.renames = {{"mlp.up_proj", "mlp.c_fc"},
                                                    {"mlp.down_proj", "mlp.c_proj"}}});

}  // namespace
}  // namespace quire
