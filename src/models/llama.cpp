// Llama 2 and 3.x, and the many models of their architecture: grouped-query attention with rotary embedding,
// gated MLP, RMSNorm before both. Architecture and defaults: transformers, configuration_llama.py and
// modeling_llama.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {});
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  decoder.mlp.bias = config.get_bool("mlp_bias", false);
  return decoder;
}

const DecoderRegistration registration({"LlamaForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
