// gpt-oss: a window on every other layer, a sink for each head, biases everywhere, and experts of a clamped
// gate. Architecture and defaults: transformers, configuration_gpt_oss.py and modeling_gpt_oss.py; OpenAI,
// "gpt-oss-120b & gpt-oss-20b model card", 2025.
#include "base/format.h"
#include "models/decoder.h"

namespace quire {
namespace {

void check_number(const ModelConfig& config, const char* key, float supported) {
  const float value = config.get_float(key, supported, kPositive);
  if (value != supported) config.fail_at(key, format_text("is {}; only {} is supported", value, supported));
}

DecoderConfig read_config(const ModelConfig& config) {
  if (!config.contains("rope_parameters") && !config.contains("rope_scaling"))
    config.fail_at("rope_parameters", "is missing");
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 201088,
                                                   .hidden_size = 2880,
                                                   .intermediate_size = 2880,
                                                   .num_layers = 36,
                                                   .num_heads = 64,
                                                   .num_kv_heads = 8,
                                                   .max_positions = 131072,
                                                   .head_dim = 64,
                                                   .norm_eps = 1e-5F,
                                                   .rope_theta = 150000});
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", true);
  decoder.attention.sinks = true;
  set_layers(config, decoder, all_but_every(2), with_window(decoder, read_window(config, 128)),
             with_window(decoder, 0));
  check_number(config, "swiglu_alpha", kSwigluAlpha);
  check_number(config, "swiglu_limit", kSwigluLimit);
  const int num_experts = config.get_int("num_local_experts", 128, kExpertCount);
  decoder.experts = {
      .intermediate_size = decoder.mlp.intermediate_size,
      .num_experts = num_experts,
      .top_k = config.get_int({"num_experts_per_tok", "experts_per_token"}, 4, {.max = num_experts}),
      .activation = Activation::kSwigluOai,
      .bias = true};
  return decoder;
}

const DecoderRegistration registration({"GptOssForCausalLM"}, read_config,
                                       {.renames = {{"gate", "router"}},
                                        .experts = FileLayout::Experts::kByTurns});

}  // namespace
}  // namespace quire
