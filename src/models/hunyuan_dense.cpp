// Hunyuan's dense models: as Llama, with norms of each head of q and k behind the rotary embedding, whose
// base is changed by a fixed alpha. Architecture and defaults: transformers,
// configuration_hunyuan_v1_dense.py and modeling_hunyuan_v1_dense.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  if (config.get_bool("use_cla", false)) config.fail_at("use_cla", "is true, which is not supported");
  if (!config.get_bool("use_qk_norm", true))
    config.fail_at("use_qk_norm", "is false, which is not supported");
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 290943, .norm_eps = 1e-5F});
  decoder.attention.qk_norm = QkNorm::kHeadAfterRotary;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  return decoder;
}

const DecoderRegistration registration({"HunYuanDenseV1ForCausalLM"}, read_config,
                                       {.renames = {{"q_norm", "query_layernorm"},
                                                    {"k_norm", "key_layernorm"}}});

}  // namespace
}  // namespace quire
