// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v. Architecture and defaults: transformers,
// configuration_qwen2.py and modeling_qwen2.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 151936,
                                                   .hidden_size = 4096,
                                                   .intermediate_size = 22016,
                                                   .num_layers = 32,
                                                   .num_heads = 32,
                                                   .num_kv_heads = 32,
                                                   .max_positions = 32768});
  decoder.attention.qkv_bias = true;
  read_qwen_windows(config, decoder);
  return decoder;
}

const DecoderRegistration text("Qwen2ForCausalLM", read_config, {.endings = {".rotary_emb.inv_freq"}});
const DecoderRegistration multimodal("Qwen2_5_VLForConditionalGeneration", read_config, kOtherModalities,
                                     text_part);

}  // namespace
}  // namespace quire
