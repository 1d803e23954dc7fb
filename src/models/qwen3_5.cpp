// Qwen3-Next and Qwen3.5, 3.6 and 3.8, their text part: Gated DeltaNet in three layers of four, attention
// with gated outputs in the others; norms of 1 + weight; with routed experts also one that all tokens have.
// Architecture and defaults: transformers, configuration_qwen3_next.py, configuration_qwen3_5.py,
// configuration_qwen3_5_moe.py and their models.
#include "models/decoder.h"

namespace quire {
namespace {

constexpr IntRange kKeySize{1, kMaxDeltaKeyDim};

DeltaNetOptions read_delta_net(const ModelConfig& config, const DecoderConfig& decoder) {
  const DeltaNetOptions options = {
      .num_key_heads = config.get_int("linear_num_key_heads", 16, kHeadCount),
      .num_value_heads = config.get_int("linear_num_value_heads", 32, kHeadCount),
      .key_dim = config.get_int("linear_key_head_dim", 128, kKeySize),
      .value_dim = config.get_int("linear_value_head_dim", 128, kHeadSize),
      .conv_width = config.get_int("linear_conv_kernel_dim", 4, {.min = 2, .max = 64}),
      .norm_eps = decoder.norm.eps};
  if (options.num_value_heads % options.num_key_heads != 0)
    config.fail_at("linear_num_value_heads", format_text("is {}, no multiple of linear_num_key_heads {}",
                                                         options.num_value_heads, options.num_key_heads));
  return options;
}

DecoderConfig read_hybrid(const ModelConfig& config, DecoderDefaults defaults) {
  defaults.num_heads = 16;
  defaults.max_positions = 32768;
  defaults.head_dim = 256;
  defaults.partial_rotary_factor = 0.25;
  DecoderConfig decoder = read_llama_like(config, defaults);
  decoder.norm.weight_offset = 1;
  LayerAttention& attention = decoder.attention;
  attention.qk_norm = QkNorm::kHead;
  attention.output_gate = config.get_bool("attn_output_gate", true);
  attention.qkv_bias = attention.out_bias = config.get_bool("attention_bias", false);
  decoder.delta_net = read_delta_net(config, decoder);
  const int interval = config.get_int("full_attention_interval", 4, kLayerCount);
  decoder.delta_layers =
      read_local_layers(config, decoder.num_layers, all_but_every(interval), "linear_attention");
  return decoder;
}

// defaults: of the numbers of experts.
ExpertOptions read_experts(const ModelConfig& config, int num_experts, int top_k, bool normalize) {
  num_experts = config.get_int("num_experts", num_experts, kExpertCount);
  return {.intermediate_size = config.get_int("moe_intermediate_size", 512, kWidth),
          .num_experts = num_experts,
          .top_k = config.get_int("num_experts_per_tok", top_k, {.max = num_experts}),
          .router = {.normalize = normalize},
          .shared_size = config.get_int("shared_expert_intermediate_size", 512, kWidth)};
}

DecoderConfig read_qwen3_5(const ModelConfig& config) {
  return read_hybrid(config, {.vocab_size = 248320, .intermediate_size = 12288, .num_kv_heads = 4});
}

DecoderConfig read_qwen3_5_moe(const ModelConfig& config) {
  DecoderConfig decoder =
      read_hybrid(config, {.vocab_size = 248320, .hidden_size = 2048, .num_layers = 40, .num_kv_heads = 2});
  decoder.experts = read_experts(config, 256, 8, true);
  return decoder;
}

DecoderConfig read_qwen3_next(const ModelConfig& config) {
  DecoderConfig decoder = read_hybrid(config, {.vocab_size = 151936,
                                               .hidden_size = 2048,
                                               .intermediate_size = 5632,
                                               .num_layers = 48,
                                               .num_kv_heads = 2});
  decoder.experts = read_experts(config, 512, 10, config.get_bool("norm_topk_prob", true));
  decoder.dense_layers = read_dense_layers(config, decoder.num_layers);
  return decoder;
}

// Heads that predict further tokens.
const std::vector<std::string> kMtpHeads = {"mtp."};

const DecoderRegistration qwen3_5({"Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"}, read_qwen3_5,
                                  {.text_part = true, .left_out = kMtpHeads});
const DecoderRegistration qwen3_5_moe(
    {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"}, read_qwen3_5_moe,
    {.experts = FileLayout::Experts::kByRows, .text_part = true, .left_out = kMtpHeads});
const DecoderRegistration qwen3_next({"Qwen3NextForCausalLM"}, read_qwen3_next,
                                     {.experts = FileLayout::Experts::kByRows,
                                      .delta_net_by_head = true,
                                      .left_out = kMtpHeads});

}  // namespace
}  // namespace quire
