// Phi-3 and Phi-4: as Llama, with q, k and v in one matrix, the gate and up in another; the mini models
// rotate a part of each head and stretch it by LongRoPE. Architecture and defaults: transformers,
// configuration_phi3.py and modeling_phi3.py; Abdin et al., "Phi-3 technical report", 2024.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 32064,
                                                   .hidden_size = 3072,
                                                   .intermediate_size = 8192,
                                                   .max_positions = 4096,
                                                   .norm_eps = 1e-5F});
  decoder.attention.window = config.get_int("sliding_window", 0, kPositions);
  return decoder;
}

const DecoderRegistration registration({"Phi3ForCausalLM"}, read_config,
                                       {.qkv = "qkv_proj", .gate_up = "gate_up_proj"});

}  // namespace
}  // namespace quire
