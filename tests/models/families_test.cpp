// What families read from config.json, beyond what the golden models show.
#include <gtest/gtest.h>

#include "base/error.h"
#include "models/model.h"

namespace quire {
namespace {

ModelSpec spec_of(const std::string& architecture, const std::string& keys) {
  const std::string text = R"({"architectures": [")" + architecture + R"("], )" + keys + "}";
  return find_model_family(architecture).describe(ModelConfig::from_json(text, "config.json"));
}

std::string refusal_of(const std::string& architecture, const std::string& keys) {
  try {
    spec_of(architecture, keys);
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(FamiliesTest, AbsentKeysTakeTheDefaultsOfTransformers) {
  const ModelSpec llama = spec_of("LlamaForCausalLM", R"("hidden_size": 4096)");
  EXPECT_EQ(llama.num_layers, 32);
  EXPECT_EQ(llama.num_kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.max_model_len, 2048);
  const ModelSpec gpt2 = spec_of("GPT2LMHeadModel", R"("n_embd": 768)");
  EXPECT_EQ(gpt2.num_layers, 12);
  EXPECT_EQ(gpt2.head_dim, 64);
  EXPECT_EQ(gpt2.max_model_len, 1024);
  EXPECT_EQ(spec_of("Qwen3MoeForCausalLM", R"("head_dim": 128)").num_kv_heads, 4);
  EXPECT_EQ(spec_of("MixtralForCausalLM", R"("head_dim": null)").head_dim, 128);
}

TEST(FamiliesTest, MistralHasAWindowUnlessTheFileSaysNone) {
  EXPECT_EQ(spec_of("MistralForCausalLM", R"("hidden_size": 4096)").sliding_window, 4096);
  EXPECT_EQ(spec_of("MistralForCausalLM", R"("sliding_window": 1024)").sliding_window, 1024);
  EXPECT_EQ(spec_of("MistralForCausalLM", R"("sliding_window": null)").sliding_window, 0);
  EXPECT_EQ(spec_of("MixtralForCausalLM", R"("hidden_size": 4096)").sliding_window, 0);
}

TEST(FamiliesTest, QwenHasAWindowInAllLayersOrInNone) {
  const std::string on = R"("num_hidden_layers": 24, "use_sliding_window": true, "sliding_window": 1024, )";
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}) {
    EXPECT_EQ(spec_of(architecture, R"("sliding_window": 1024)").sliding_window, 0);
    EXPECT_EQ(spec_of(architecture, on + R"("max_window_layers": 28)").sliding_window, 0);
    EXPECT_EQ(spec_of(architecture, on + R"("max_window_layers": 0)").sliding_window, 1024);
    EXPECT_NE(refusal_of(architecture, on + R"("max_window_layers": 20)")
                  .find("\"max_window_layers\" gives 20 of 24"),
              std::string::npos);
    const std::string absent =
        R"("use_sliding_window": true, "max_window_layers": 0, "sliding_window": null)";
    EXPECT_EQ(spec_of(architecture, absent).sliding_window, 0);
  }
}

TEST(FamiliesTest, QwensLayerTypesCountBeforeMaxWindowLayers) {
  const std::string on = R"("num_hidden_layers": 2, "use_sliding_window": true, "sliding_window": 1024, )";
  const std::string all = R"("layer_types": ["sliding_attention", "sliding_attention"])";
  const std::string none = R"("max_window_layers": 0, "layer_types": ["full_attention", "full_attention"])";
  const std::string some = R"("layer_types": ["full_attention", "sliding_attention"])";
  EXPECT_EQ(spec_of("Qwen3ForCausalLM", on + all).sliding_window, 1024);
  EXPECT_EQ(spec_of("Qwen3ForCausalLM", on + none).sliding_window, 0);
  EXPECT_NE(refusal_of("Qwen3ForCausalLM", on + some).find("\"layer_types\" gives 1 of 2"),
            std::string::npos);
}

TEST(FamiliesTest, WhatTheyCannotDoIsRefusedByName) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"LlamaForCausalLM", R"("hidden_act": "gelu")", "\"hidden_act\" is \"gelu\""},
      {"LlamaForCausalLM", R"("num_attention_heads": 6, "num_key_value_heads": 4)", "no multiple"},
      {"GPT2LMHeadModel", R"("activation_function": "relu")", "\"activation_function\" is \"relu\""},
      {"GPT2LMHeadModel", R"("n_head": 7)", "\"n_head\" is 7"},
      {"GPT2LMHeadModel", R"("add_cross_attention": true)", "add_cross_attention"},
      {"GPT2LMHeadModel", R"("scale_attn_by_inverse_layer_idx": true)", "scale_attn_by_inverse_layer_idx"},
      {"BloomForCausalLM", R"("apply_residual_connection_post_layernorm": true)", "post_layernorm"},
      {"BloomForCausalLM", R"("n_head": 7)", "\"n_head\" is 7"},
      {"Qwen3MoeForCausalLM", R"("num_experts": 4, "num_experts_per_tok": 5)", "num_experts_per_tok"},
      {"GraniteForCausalLM", R"("logits_scaling": 0)", "logits_scaling"},
      {"MiniCPMForCausalLM", R"("scale_emb": "12")", "scale_emb"},
      {"MiniCPMForCausalLM", R"("num_experts": 8)", "num_experts"},
  };
  for (const auto& [architecture, keys, expected] : cases) {
    const std::string refusal = refusal_of(architecture, keys);
    EXPECT_NE(refusal.find(expected), std::string::npos) << keys << ": " << refusal;
  }
}

TEST(FamiliesTest, SparseAttentionShortensTheContext) {
  const std::string keys = R"("max_position_embeddings": 65536)";
  EXPECT_EQ(spec_of("MiniCPMForCausalLM", keys).max_model_len, 65536);
  EXPECT_EQ(spec_of("MiniCPMForCausalLM", keys + R"(, "sparse_config": {"dense_len": 8192})").max_model_len,
            8192);
}

}  // namespace
}  // namespace quire
