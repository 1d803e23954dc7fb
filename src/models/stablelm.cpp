// StableLM: as Llama, with LayerNorm, a rotary embedding of a quarter of each head, biases of q, k and v in
// some, and in some attention and the MLP side by side behind one norm. Architecture and defaults:
// transformers, configuration_stablelm.py and modeling_stablelm.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  // LayerNorms of each head, with weights of its own (StableLM 2 12B).
  if (config.get_bool("qk_layernorm", false))
    config.fail_at("qk_layernorm", "is true, which is not supported");
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 50304,
                                                   .hidden_size = 2560,
                                                   .intermediate_size = 6912,
                                                   .num_kv_heads = 32,
                                                   .max_positions = 4096,
                                                   .norm_eps = 1e-5F,
                                                   .norm_eps_key = "layer_norm_eps",
                                                   .partial_rotary_factor = 0.25});
  decoder.norm.kind = NormKind::kLayer;
  if (config.get_bool("use_parallel_residual", false)) decoder.norms = BlockNorms::kShared;
  decoder.attention.qkv_bias = config.get_bool("use_qkv_bias", false);
  return decoder;
}

const DecoderRegistration registration({"StableLmForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
