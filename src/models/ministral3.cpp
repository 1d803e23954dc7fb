// Ministral 3: as Mistral, with queries scaled by their position beyond the original length. The text part of
// Mistral 3 is one of both. Architecture and defaults: transformers, configuration_ministral3.py,
// modeling_ministral3.py and configuration_mistral3.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 131072,
                                                   .hidden_size = 4096,
                                                   .intermediate_size = 14336,
                                                   .num_layers = 34,
                                                   .num_heads = 32,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 262144,
                                                   .head_dim = 128,
                                                   .norm_eps = 1e-5F});
  decoder.attention.window = config.get_int("sliding_window", 0, kPositions);
  return decoder;
}

const DecoderRegistration text("Ministral3ForCausalLM", read_config, {});
const DecoderRegistration multimodal("Mistral3ForConditionalGeneration", read_config, kOtherModalities,
                                     text_part);

}  // namespace
}  // namespace quire
