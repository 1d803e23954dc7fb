// LFM2 and LFM2.5: gated short convolutions in most layers, attention with norms of each head of q and k in
// the others; the mixtures have a sigmoid router, whose bias chooses experts but does not weigh them.
// Architecture and defaults: transformers, configuration_lfm2.py, configuration_lfm2_moe.py and their models.
#include <algorithm>

#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_convolutional(const ModelConfig& config, DecoderDefaults defaults) {
  defaults.vocab_size = 65536;
  defaults.num_kv_heads = 8;
  defaults.max_positions = 128000;
  defaults.norm_eps = 1e-5F;
  defaults.norm_eps_key = "norm_eps";
  defaults.rope_theta = 1e6;
  DecoderConfig decoder = read_llama_like(config, defaults);
  decoder.tie_word_embeddings = config.get_bool({"tie_embedding", "tie_word_embeddings"}, true);
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.conv = {.width = config.get_int("conv_L_cache", 3, {.min = 2, .max = 64}),
                  .bias = config.get_bool("conv_bias", false)};
  const std::vector<int> attention = config.get_ints("full_attn_idxs", {.min = 0});
  decoder.conv_layers = read_local_layers(
      config, decoder.num_layers,
      [&](int layer) {
        return config.contains("full_attn_idxs") && std::ranges::find(attention, layer) == attention.end();
      },
      "conv");
  return decoder;
}

DecoderConfig read_lfm2(const ModelConfig& config) {
  DecoderConfig decoder = read_convolutional(config, {.hidden_size = 2560, .intermediate_size = 12288});
  std::int64_t& size = decoder.mlp.intermediate_size;
  size = config.get_int({"block_ff_dim", "intermediate_size"}, 12288, kWidth);
  if (!config.get_bool("block_auto_adjust_ff_dim", true)) return decoder;
  // Two thirds of it, for a gate has its third.
  size = 2 * size / 3;
  if (config.is_null("block_ffn_dim_multiplier")) return decoder;
  const double factor = config.get_double("block_ffn_dim_multiplier", 1, {kPositive.min, 256});
  const std::int64_t step = config.get_int("block_multiple_of", 256, kWidth);
  size = (static_cast<std::int64_t>(factor * static_cast<double>(size)) + step - 1) / step * step;
  return decoder;
}

DecoderConfig read_lfm2_moe(const ModelConfig& config) {
  DecoderConfig decoder = read_convolutional(config, {.hidden_size = 2048, .intermediate_size = 7168});
  const int num_experts = config.get_int("num_experts", 32, kHeadCount);
  decoder.experts = {.intermediate_size = config.get_int("moe_intermediate_size", 1792, kWidth),
                     .num_experts = num_experts,
                     .top_k = config.get_int("num_experts_per_tok", 4, {.max = num_experts}),
                     .router = {.sigmoid = true,
                                .normalize = config.get_bool("norm_topk_prob", true),
                                .sum_offset = 1e-6F,
                                .scale = config.get_float("routed_scaling_factor", 1, kPositive)},
                     .selection_bias = config.get_bool("use_expert_bias", true)};
  const int num_dense = config.get_int("num_dense_layers", 2, {.min = 0});
  for (int i = 0; i < std::min(num_dense, decoder.num_layers); ++i) decoder.dense_layers.push_back(i);
  return decoder;
}

const FileLayout kLfm2Layout = {.renames = {{"model.norm", "model.embedding_norm"},
                                            {"input_layernorm", "operator_norm"},
                                            {"post_attention_layernorm", "ffn_norm"},
                                            {"q_norm", "q_layernorm"},
                                            {"k_norm", "k_layernorm"},
                                            {"o_proj", "out_proj"},
                                            {"mlp", "feed_forward"},
                                            {"gate.e_score_correction_bias", "expert_bias"},
                                            {"gate_proj", "w1"},
                                            {"up_proj", "w3"},
                                            {"down_proj", "w2"}}};
const DecoderRegistration lfm2({"Lfm2ForCausalLM"}, read_lfm2, kLfm2Layout);
const DecoderRegistration lfm2_moe({"Lfm2MoeForCausalLM"}, read_lfm2_moe, kLfm2Layout);

}  // namespace
}  // namespace quire
