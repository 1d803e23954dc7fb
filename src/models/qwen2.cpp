// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v. Architecture and defaults: transformers,
// configuration_qwen2.py and modeling_qwen2.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(
      config, {.vocab_size = 151936, .intermediate_size = 22016, .num_kv_heads = 32, .max_positions = 32768});
  decoder.attention.qkv_bias = true;
  read_qwen_windows(config, decoder);
  return decoder;
}

const DecoderRegistration text("Qwen2ForCausalLM", read_config, {.unneeded = {".rotary_emb.inv_freq"}});
const DecoderRegistration multimodal("Qwen2_5_VLForConditionalGeneration", read_config, {.text_part = true});

}  // namespace
}  // namespace quire
