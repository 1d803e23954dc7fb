// BLOOM: ALiBi instead of positions, LayerNorm (also over the embedding), a GELU MLP, biases everywhere; q, k
// and v of a head lie together. Architecture and defaults: transformers, configuration_bloom.py and
// modeling_bloom.py; Le Scao et al., 2022.
#include "models/decoder.h"

namespace quire {
namespace {

DecoderConfig read_config(const ModelConfig& config) {
  if (config.get_bool("apply_residual_connection_post_layernorm", false))
    config.fail_at("apply_residual_connection_post_layernorm", "is true, which is not supported");
  DecoderConfig decoder = read_gpt_like(
      config, "n_embed", {.vocab_size = 250880, .hidden_size = 64, .num_layers = 2, .num_heads = 8});
  decoder.max_positions = config.get_int("seq_length", 2048, kPositions);
  decoder.embedding_norm = true;
  decoder.attention.alibi = true;
  return decoder;
}

const DecoderRegistration registration({"BloomForCausalLM"}, read_config,
                                       {.renames = {{"model.embed_tokens", "transformer.word_embeddings"},
                                                    {"model.embed_norm",
                                                     "transformer.word_embeddings_layernorm"},
                                                    {"model.layers", "transformer.h"},
                                                    {"model.norm", "transformer.ln_f"},
                                                    {"self_attn", "self_attention"},
                                                    {"o_proj", "dense"},
                                                    {"up_proj", "dense_h_to_4h"},
                                                    {"down_proj", "dense_4h_to_h"}},
                                        .qkv = "query_key_value",
                                        .qkv_by_head = true});

}  // namespace
}  // namespace quire
