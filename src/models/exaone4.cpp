// EXAONE 4: as Llama, with norms of what attention and the MLP add instead of before them, norms of each head
// of q and k, and where layers have a window, those without have no positions. Architecture and defaults:
// transformers, configuration_exaone4.py and modeling_exaone4.py.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  DecoderConfig decoder = read_llama_like(
      config, {.vocab_size = 102400, .intermediate_size = 16384, .num_kv_heads = 32, .norm_eps = 1e-5F});
  decoder.norms = BlockNorms::kAfter;
  decoder.attention.qk_norm = QkNorm::kHead;
  const int window = read_window(config, 4096);
  if (window == 0) return decoder;
  // Published files with a pattern of letters name each layer's type, too.
  const auto is_local = [&](int layer) {
    return (layer + 1) % config.get_int("sliding_window_pattern", 4, kLayerCount) != 0;
  };
  LayerAttention global = with_window(decoder, 0);
  global.rotary.reset();
  set_layers(config, decoder, is_local, with_window(decoder, window), global);
  return decoder;
}

const DecoderRegistration registration({"Exaone4ForCausalLM"}, read_config);

}  // namespace
}  // namespace quire
