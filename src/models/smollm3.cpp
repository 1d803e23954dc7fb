// SmolLM3: as Llama, with every fourth layer without positions. Architecture and defaults: transformers,
// configuration_smollm3.py and modeling_smollm3.py; Yang et al., "Rope to Nope and back again", 2025.
#include "base/error.h"
#include "models/decoder.h"

namespace quire {
namespace {

// no_rope_layers has a one for each layer that does have them.
std::vector<bool> read_rotary_layers(const ModelConfig& config, int num_layers) {
  const int interval = config.get_int("no_rope_layer_interval", 4, kLayerCount);
  const std::vector<int> flags = config.get_ints("no_rope_layers", {.min = 0, .max = 1});
  if (!flags.empty() && std::ssize(flags) < num_layers)
    config.fail_at("no_rope_layers", format_text("names {} layers; there are {}", flags.size(), num_layers));
  std::vector<bool> rotary;
  for (int i = 0; i < num_layers; ++i)
    rotary.push_back(flags.empty() ? (i + 1) % interval != 0 : flags[i] != 0);
  return rotary;
}

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(config, {.vocab_size = 128256,
                                                   .hidden_size = 2048,
                                                   .num_layers = 36,
                                                   .num_heads = 16,
                                                   .num_kv_heads = 4,
                                                   .max_positions = 32768,
                                                   .rope_theta = 2000000,
                                                   .tie_word_embeddings = true});
  decoder.attention.qkv_bias = decoder.attention.out_bias = config.get_bool("attention_bias", false);
  decoder.mlp.bias = config.get_bool("mlp_bias", false);
  const std::vector<bool> rotary = read_rotary_layers(config, decoder.num_layers);
  const bool windows = config.get_bool("use_sliding_window", false);
  const auto has_none = [&](int layer) { return !rotary[layer]; };
  const std::vector<bool> local = read_local_layers(config, decoder.num_layers, has_none);
  for (std::size_t i = 0; i < rotary.size(); ++i) {
    LayerAttention& layer = decoder.layers.emplace_back(decoder.attention);
    if (windows && local[i]) layer.window = config.get_int("sliding_window", 0, kPositions);
    if (!rotary[i]) layer.rotary.reset();
  }
  return decoder;
}

const DecoderRegistration registration({"SmolLM3ForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
