// OLMo 2 and 3: as Llama, with norms of what attention and the MLP add instead of before them, and norms over
// all heads of q and k; OLMo 3 has a window in three of four layers, whose rotary embedding is never
// stretched. Architecture and defaults: transformers, configuration_olmo2.py, configuration_olmo3.py and
// modeling_olmo3.py; OLMo team, "2 OLMo 2 Furious", 2024.
#include "models/decoder.h"

namespace quire {
namespace {

// rotary_of: as in DecoderDefaults.
DecoderConfig read_olmo(const ModelConfig& config, const char* rotary_of) {
  DecoderConfig decoder =
      read_llama_like(config, {.vocab_size = 50304, .norm_eps = 1e-5F, .rotary_of = rotary_of});
  decoder.norms = BlockNorms::kAfter;
  decoder.attention.qk_norm = QkNorm::kAll;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  return decoder;
}

DecoderConfig read_olmo2(const ModelConfig& config) { return read_olmo(config, nullptr); }

DecoderConfig read_olmo3(const ModelConfig& config) {
  DecoderConfig decoder = read_olmo(config, "full_attention");
  LayerAttention local = with_window(decoder, read_window(config, 4096));
  local.rotary = read_local_rotary(config, decoder.attention.rotary->theta);
  set_layers(config, decoder, all_but_every(4), local, with_window(decoder, 0));
  return decoder;
}

const DecoderRegistration olmo2({"Olmo2ForCausalLM"}, read_olmo2);
const DecoderRegistration olmo3({"Olmo3ForCausalLM"}, read_olmo3);

}  // namespace
}  // namespace quire
