// MiniCPM and MiniCPM4: as Llama, with the embedding, what a block adds, and the last hidden states scaled so
// that sizes can change without new hyperparameters (Hu et al., "MiniCPM", 2024). Architecture and defaults:
// the authors' configuration_minicpm.py and modeling_minicpm.py (openbmb/MiniCPM4-8B).
#include <algorithm>
#include <cmath>

#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  // MiniCPM-MoE has the same architecture's name.
  if (config.get_int("num_experts", 0, {.min = 0}) > 0)
    config.fail_at("num_experts", "is there, but MiniCPM's routed experts are not supported");
  DecoderConfig decoder = read_llama_like(config, {.tie_word_embeddings = true});
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  decoder.embedding_scale = config.get_float("scale_emb", 1, kPositive);
  decoder.norm.update_scale =
      config.get_float("scale_depth", 1, kPositive) / std::sqrt(static_cast<float>(decoder.num_layers));
  decoder.logits_scale = static_cast<float>(config.get_int("dim_model_base", 1, kWidth)) /
                         static_cast<float>(decoder.hidden_size);
  // MiniCPM4.1 attends to chosen blocks of keys only, from a length on.
  if (const auto sparse = config.find_object("sparse_config"))
    decoder.max_positions = std::min(decoder.max_positions, sparse->get_int("dense_len", 8192, kPositions));
  return decoder;
}

const DecoderRegistration registration({"MiniCPMForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
