// Qwen2 and Qwen2.5: as Llama, with biases on q, k and v. Qwen3: with an RMSNorm over each head of q and k
// instead; with routed experts also a few of many small gated MLPs for each token in most layers.
// Architecture and defaults: transformers, configuration_qwen2.py, configuration_qwen3.py,
// configuration_qwen3_moe.py and their models.
#include "models/decoder.h"

namespace quire {
namespace {

// Windows, by use_sliding_window, sliding_window and max_window_layers, or layer_types.
void read_windows(const ModelConfig& config, DecoderConfig& decoder) {
  // A null window means none, a key that is absent the default.
  if (!config.get_bool("use_sliding_window", false) || config.is_null("sliding_window")) return;
  const int first = config.get_int("max_window_layers", 28, {.min = 0});
  const auto is_local = [first](int layer) { return layer >= first; };
  const int window = config.get_int("sliding_window", 4096, kPositions);
  set_layers(config, decoder, is_local, with_window(decoder, window), with_window(decoder, 0));
}

DecoderConfig read_qwen2(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(
      config, {.vocab_size = 151936, .intermediate_size = 22016, .num_kv_heads = 32, .max_positions = 32768});
  decoder.attention.qkv_bias = true;
  read_windows(config, decoder);
  return decoder;
}

DecoderConfig read_qwen3(const ModelConfig& config, const DecoderDefaults& defaults) {
  DecoderConfig decoder = read_llama_like(config, defaults);
  decoder.attention.qk_norm = QkNorm::kHead;
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  read_windows(config, decoder);
  return decoder;
}

DecoderConfig read_dense_qwen3(const ModelConfig& config) {
  return read_qwen3(config, {.vocab_size = 151936,
                             .intermediate_size = 22016,
                             .num_kv_heads = 32,
                             .max_positions = 32768,
                             .head_dim = 128});
}

DecoderConfig read_qwen3_moe(const ModelConfig& config) {
  DecoderConfig decoder = read_qwen3(config, {.vocab_size = 151936,
                                              .hidden_size = 2048,
                                              .intermediate_size = 6144,
                                              .num_layers = 24,
                                              .num_kv_heads = 4,
                                              .max_positions = 32768});
  const int num_experts = config.get_int({"num_experts", "num_local_experts"}, 128, kExpertCount);
  decoder.experts = {.intermediate_size = config.get_int("moe_intermediate_size", 768, kWidth),
                     .num_experts = num_experts,
                     .top_k = config.get_int("num_experts_per_tok", 8, {.max = num_experts}),
                     .router = {.normalize = config.get_bool("norm_topk_prob", false)}};
  decoder.dense_layers = read_dense_layers(config, decoder.num_layers);
  return decoder;
}

const DecoderRegistration qwen2({"Qwen2ForCausalLM"}, read_qwen2);
const DecoderRegistration qwen2_vl({"Qwen2_5_VLForConditionalGeneration"}, read_qwen2, {.text_part = true});
const DecoderRegistration qwen3({"Qwen3ForCausalLM"}, read_dense_qwen3);
const DecoderRegistration qwen3_vl({"Qwen3VLForConditionalGeneration"}, read_dense_qwen3,
                                   {.text_part = true});
const DecoderRegistration qwen3_moe({"Qwen3MoeForCausalLM"}, read_qwen3_moe);

}  // namespace
}  // namespace quire
