// Qwen3 with routed experts: attention as in Qwen3, and in most layers a few of many small gated MLPs for
// each token. Architecture and defaults: transformers, configuration_qwen3_moe.py and modeling_qwen3_moe.py.
#include "models/decoder.h"

namespace quire {
namespace {

constexpr IntRange kExperts{1, 1 << 12};

// Every decoder_sparse_step-th layer has experts, but for mlp_only_layers.
std::vector<int> dense_layers(const ModelConfig& config, int num_layers) {
  std::vector<int> dense = config.get_ints("mlp_only_layers", {.min = 0});
  const int step = config.get_int("decoder_sparse_step", 1);
  for (int i = 0; i < num_layers; ++i) {
    if ((i + 1) % step != 0) dense.push_back(i);
  }
  return dense;
}

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 151936,
                                                   .hidden_size = 2048,
                                                   .intermediate_size = 6144,
                                                   .num_layers = 24,
                                                   .num_kv_heads = 4,
                                                   .max_positions = 32768});
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  read_qwen_windows(config, decoder);
  const int num_experts = config.get_int({"num_experts", "num_local_experts"}, 128, kExperts);
  decoder.experts = {.intermediate_size = config.get_int("moe_intermediate_size", 768, kWidth),
                     .num_experts = num_experts,
                     .top_k = config.get_int("num_experts_per_tok", 8, {.max = num_experts}),
                     .normalize = config.get_bool("norm_topk_prob", false)};
  decoder.dense_layers = dense_layers(config, decoder.num_layers);
  return decoder;
}

const DecoderRegistration registration("Qwen3MoeForCausalLM", read_config);

}  // namespace
}  // namespace quire
