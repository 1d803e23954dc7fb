// Seed-OSS: as Llama, with biases of q, k and v. Architecture and defaults: transformers,
// configuration_seed_oss.py and modeling_seed_oss.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 155136,
                                                   .intermediate_size = 27648,
                                                   .num_layers = 64,
                                                   .num_heads = 80,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 524288,
                                                   .head_dim = 128});
  decoder.attention.qkv_bias = config.get_bool("attention_bias", true);
  decoder.attention.out_bias = config.get_bool("attention_out_bias", false);
  decoder.mlp.bias = config.get_bool("mlp_bias", false);
  return decoder;
}

const DecoderRegistration registration({"SeedOssForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
