// GPT-2: learned positions, LayerNorm, a GELU MLP, biases everywhere; matrices lie transposed in its files,
// q, k and v as one. Architecture and defaults: transformers, configuration_gpt2.py and modeling_gpt2.py;
// Radford et al., 2019.
#include "base/error.h"
#include "base/json.h"
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"})
    if (config.get_bool(key, false)) config.fail_at(key, "is true, which is not supported");
  const auto act = config.get_string("activation_function", "gelu_new");
  if (act != "gelu_new" && act != "gelu_pytorch_tanh")
    config.fail_at("activation_function",
                   format_text("is {}; only \"gelu_new\" is supported", in_quotes(act)));
  DecoderConfig decoder = read_gpt_like(
      config, "n_embd", {.vocab_size = 50257, .hidden_size = 768, .num_layers = 12, .num_heads = 12});
  decoder.mlp.intermediate_size = config.get_int("n_inner", 4 * decoder.hidden_size, kWidth);
  decoder.max_positions = decoder.num_learned_positions =
      config.get_int({"n_positions", "max_position_embeddings"}, 1024, kPositions);
  if (!config.get_bool("scale_attn_weights", true)) decoder.attention.scale = 1;
  return decoder;
}

// attn.bias is the causal mask, not a bias.
const DecoderRegistration registration({"GPT2LMHeadModel"}, read_config,
                                       {.renames = {{"model.embed_tokens", "transformer.wte"},
                                                    {"model.embed_positions", "transformer.wpe"},
                                                    {"model.layers", "transformer.h"},
                                                    {"model.norm", "transformer.ln_f"},
                                                    {"input_layernorm", "ln_1"},
                                                    {"post_attention_layernorm", "ln_2"},
                                                    {"self_attn", "attn"},
                                                    {"o_proj", "c_proj"},
                                                    {"up_proj", "c_fc"},
                                                    {"down_proj", "c_proj"}},
                                        .qkv = "c_attn",
                                        .transposed = true,
                                        .unneeded = {".attn.bias", ".attn.masked_bias"}});

}  // namespace
}  // namespace quire
