// Granite 3.x, dense: as Llama, with a multiplier each for embedding, residual stream, attention and logits.
// Architecture and defaults: transformers, configuration_granite.py and modeling_granite.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {});
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  decoder.mlp.bias = config.get_bool("mlp_bias", false);
  decoder.embedding_scale = config.get_float("embedding_multiplier", 1);
  decoder.norm.update_scale = config.get_float("residual_multiplier", 1);
  decoder.attention.scale = config.get_float("attention_multiplier", 1);
  decoder.logits_scale = 1.0F / config.get_float("logits_scaling", 1, kPositive);
  return decoder;
}

const DecoderRegistration registration({"GraniteForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
