// GLM-4, dense: as Llama, with both parts of a block between two norms (the first GLM-4 has those before them
// only), neighbouring dimensions that rotate together over half of each head, biases of q, k and v, and the
// gate and up in one matrix. Architecture and defaults: transformers, configuration_glm4.py,
// modeling_glm4.py and configuration_glm.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_glm(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 151552,
                                                   .intermediate_size = 13696,
                                                   .num_layers = 40,
                                                   .num_kv_heads = 2,
                                                   .max_positions = 131072,
                                                   .head_dim = 128,
                                                   .norm_eps = 1.5625e-7F,
                                                   .partial_rotary_factor = 0.5});
  decoder.attention.qkv_bias = config.get_bool("attention_bias", true);
  return decoder;
}

DecoderConfig read_glm4(const ModelConfig& config) {
  DecoderConfig decoder = read_glm(config);
  decoder.norms = BlockNorms::kAround;
  return decoder;
}

const DecoderRegistration glm({"GlmForCausalLM"}, read_glm,
                              {.gate_up = "gate_up_proj", .neighbour_rotary = true});
const DecoderRegistration glm4({"Glm4ForCausalLM"}, read_glm4,
                               {.renames = {{"post_attention_layernorm", "post_self_attn_layernorm"},
                                            {"pre_feedforward_layernorm", "post_attention_layernorm"},
                                            {"post_feedforward_layernorm", "post_mlp_layernorm"}},
                                .gate_up = "gate_up_proj",
                                .neighbour_rotary = true});

}  // namespace
}  // namespace quire
