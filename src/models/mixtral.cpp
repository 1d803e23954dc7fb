// Mixtral: Mistral's attention, and for each token two of eight gated MLPs. Architecture and defaults:
// transformers, configuration_mixtral.py and modeling_mixtral.py; Jiang et al., "Mixtral of experts", 2024.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.intermediate_size = 14336,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 4096 * 32,
                                                   .norm_eps = 1e-5F,
                                                   .rope_theta = 1e6});
  decoder.attention.window = config.get_int("sliding_window", 0, kPositions);
  const int num_experts = config.get_int({"num_local_experts", "num_experts"}, 8, kExpertCount);
  decoder.experts = {.intermediate_size = decoder.mlp.intermediate_size,
                     .num_experts = num_experts,
                     .top_k = config.get_int("num_experts_per_tok", 2, {.max = num_experts})};
  return decoder;
}

const DecoderRegistration registration(
    {"MixtralForCausalLM"}, read_config,
    {.renames = {{"mlp", "block_sparse_moe"}, {"gate_proj", "w1"}, {"up_proj", "w3"}, {"down_proj", "w2"}}});

}  // namespace
}  // namespace quire
