// Qwen3, dense: grouped-query attention with an RMSNorm over each head of q and k, gated MLP. Architecture
// and defaults: transformers, configuration_qwen3.py and modeling_qwen3.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 151936,
                                                   .intermediate_size = 22016,
                                                   .num_kv_heads = 32,
                                                   .max_positions = 32768,
                                                   .head_dim = 128});
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  read_qwen_windows(config, decoder);
  return decoder;
}

const DecoderRegistration text("Qwen3ForCausalLM", read_config);
const DecoderRegistration multimodal("Qwen3VLForConditionalGeneration", read_config, {.text_part = true});

}  // namespace
}  // namespace quire
