// Mistral: as Llama, with a sliding window in older versions. Architecture and defaults: transformers,
// configuration_mistral.py and modeling_mistral.py; Jiang et al., "Mistral 7B", 2023.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 32000,
                                                   .hidden_size = 4096,
                                                   .intermediate_size = 14336,
                                                   .num_layers = 32,
                                                   .num_heads = 32,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 4096 * 32});
  // A null means none, a key that is absent the default.
  if (!config.is_null("sliding_window"))
    decoder.attention.window = config.get_int("sliding_window", 4096, kPositions);
  return decoder;
}

const DecoderRegistration registration("MistralForCausalLM", read_config,
                                       {.endings = {".rotary_emb.inv_freq"}});

}  // namespace
}  // namespace quire
