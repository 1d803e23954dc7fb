// What families read from config.json, beyond what the golden models show.
#include <gtest/gtest.h>

#include "backends/registry.h"
#include "base/error.h"
#include "models/model.h"
#include "parallel/lone_rank.h"
#include "runner/memory_plan.h"

namespace quire {
namespace {

ModelSpec spec_of(const std::string& architecture, const std::string& keys) {
  const std::string text = R"({"architectures": [")" + architecture + R"("], )" + keys + "}";
  return find_model_family(architecture).describe(ModelConfig::from_json(text, "config.json"));
}

// What the layers of one of hidden size 64 declare.
StateDeclarations states_of(const std::string& architecture, const std::string& keys,
                            const CachePolicy& policy = {}) {
  const std::string text =
      R"({"architectures": [")" + architecture + R"("], "hidden_size": 64, )" + keys + "}";
  const auto model = ModelConfig::from_json(text, "config.json");
  const auto backend = make_backend({});
  SingleRank comm(*backend);
  RuntimeConfig config;
  config.cache_policy = policy;
  config.spec = find_model_family(architecture).describe(model);
  config.max_num_seqs = config.max_num_batched_tokens = 8;
  config.max_model_len = 64;
  return declare_states(*backend, comm, config, model);
}

// Of each layer: positions that a token attends to; 0: all.
std::vector<int> windows_of(const std::string& architecture, const std::string& keys) {
  const StateDeclarations states = states_of(architecture, keys);
  std::vector<int> windows;
  for (const int group : states.group_of())
    windows.push_back(states.groups()[static_cast<std::size_t>(group)].window);
  return windows;
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
  EXPECT_EQ(spec_of("Ernie4_5ForCausalLM", R"("hidden_size": 1024)").num_kv_heads, 2);
  EXPECT_EQ(spec_of("Glm4ForCausalLM", R"("hidden_size": 4096)").head_dim, 128);
  EXPECT_EQ(spec_of("SeedOssForCausalLM", R"("hidden_size": 4096)").num_heads, 80);
  EXPECT_EQ(spec_of("HunYuanDenseV1ForCausalLM", R"("hidden_size": 4096)").vocab_size, 290943);
  EXPECT_EQ(spec_of("Phi3ForCausalLM", R"("hidden_size": 3072)").head_dim, 96);
  const ModelSpec stablelm = spec_of("StableLmForCausalLM", R"("hidden_size": 2560)");
  EXPECT_EQ(stablelm.num_layers, 32);
  EXPECT_EQ(stablelm.num_kv_heads, 32);
  EXPECT_EQ(stablelm.head_dim, 80);
  EXPECT_EQ(stablelm.vocab_size, 50304);
  EXPECT_EQ(stablelm.max_model_len, 4096);
  const ModelSpec starcoder2 = spec_of("Starcoder2ForCausalLM", R"("hidden_size": 3072)");
  EXPECT_EQ(starcoder2.num_layers, 30);
  EXPECT_EQ(starcoder2.num_kv_heads, 2);
  EXPECT_EQ(starcoder2.head_dim, 128);
  EXPECT_EQ(starcoder2.vocab_size, 49152);
  EXPECT_EQ(starcoder2.max_model_len, 4096);
}

TEST(FamiliesTest, Lfm2AttendsInSomeLayersAndKeepsTwoInputsOfTheOthers) {
  const std::string layers = R"("num_hidden_layers": 4, "num_attention_heads": 8, )";
  for (const std::string& types :
       {std::string(R"("full_attn_idxs": [1])"),
        std::string(R"("layer_types": ["conv", "full_attention", "conv", "conv"])")}) {
    const StateDeclarations states = states_of("Lfm2ForCausalLM", layers + types);
    EXPECT_EQ(states.group_of().size(), 1U);
    EXPECT_EQ(std::vector(states.fixed().begin(), states.fixed().end()),
              std::vector(3, std::vector<std::int64_t>{2, 64}));
  }
  EXPECT_EQ(states_of("Lfm2ForCausalLM", layers + R"("conv_bias": false)").group_of().size(), 4U);
  EXPECT_NE(
      refusal_of("Lfm2ForCausalLM", R"("num_hidden_layers": 1, "layer_types": ["mamba"])").find("\"conv\""),
      std::string::npos);
  EXPECT_EQ(spec_of("Lfm2ForCausalLM", R"("conv_L_cache": 3)").hidden_size, 2560);
  EXPECT_EQ(spec_of("Lfm2MoeForCausalLM", R"("num_experts": 8)").max_model_len, 128000);
}

TEST(FamiliesTest, Qwen3_5AttendsInEveryFourthLayerAndKeepsStatesOfTheOthers) {
  const std::string layers =
      R"("num_hidden_layers": 4, "num_attention_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8,
         "linear_num_value_heads": 6, "linear_value_head_dim": 16)";
  const std::vector<std::int64_t> inputs = {3, 2 * 2 * 8 + 6 * 16}, state = {6, 8, 16};
  const auto expect_linear = [&](const std::string& keys, std::size_t linear) {
    const StateDeclarations states = states_of("Qwen3_5ForCausalLM", layers + keys);
    EXPECT_EQ(states.group_of().size(), 4 - linear);
    ASSERT_EQ(states.fixed().size(), 2 * linear);
    for (std::size_t i = 0; i < 2 * linear; ++i) EXPECT_EQ(states.fixed()[i], i % 2 == 0 ? inputs : state);
  };
  expect_linear("", 3);
  expect_linear(R"(, "full_attention_interval": 2)", 2);
  expect_linear(
      R"(, "layer_types": ["linear_attention", "full_attention", "full_attention", "full_attention"])", 1);
  EXPECT_NE(refusal_of("Qwen3_5ForCausalLM", layers + R"(, "layer_types": ["mamba"])")
                .find("names 1 layers; there are 4"),
            std::string::npos);
  EXPECT_NE(refusal_of("Qwen3NextForCausalLM", R"("linear_num_value_heads": 24)")
                .find("linear_num_value_heads\" is 24, no multiple of linear_num_key_heads 16"),
            std::string::npos);
}

TEST(FamiliesTest, LayersThatKeepNoCodesAreNumberedAmongAllLayers) {
  const CachePolicy policy = {.code = CacheCode::kE4m3, .skipped = {1, 2}};
  const StateDeclarations states =
      states_of("Lfm2ForCausalLM",
                R"("num_hidden_layers": 4, "num_attention_heads": 8, "full_attn_idxs": [2, 3])", policy);
  ASSERT_EQ(states.group_of().size(), 2U);
  EXPECT_EQ(states.spec_of(0).code, CacheCode::kNone);
  EXPECT_EQ(states.spec_of(1).code, CacheCode::kE4m3);
}

TEST(FamiliesTest, MistralHasAWindowUnlessTheFileSaysNone) {
  const std::string layers = R"("num_hidden_layers": 2)";
  const auto of_mistral = [&](const std::string& keys) {
    return windows_of("MistralForCausalLM", layers + keys);
  };
  EXPECT_EQ(of_mistral(""), std::vector({4096, 4096}));
  EXPECT_EQ(of_mistral(R"(, "sliding_window": 1024)"), std::vector({1024, 1024}));
  EXPECT_EQ(of_mistral(R"(, "sliding_window": null)"), std::vector({0, 0}));
  EXPECT_EQ(windows_of("MixtralForCausalLM", layers), std::vector({0, 0}));
}

TEST(FamiliesTest, StarCoder2HasAWindowWhereTheFileSaysOne) {
  const auto of_starcoder2 = [](const std::string& keys) {
    return windows_of("Starcoder2ForCausalLM", R"("num_hidden_layers": 2, "num_attention_heads": 4)" + keys);
  };
  EXPECT_EQ(of_starcoder2(""), std::vector({0, 0}));
  EXPECT_EQ(of_starcoder2(R"(, "sliding_window": null)"), std::vector({0, 0}));
  EXPECT_EQ(of_starcoder2(R"(, "sliding_window": 32)"), std::vector({32, 32}));
}

TEST(FamiliesTest, QwenHasAWindowInItsLastLayers) {
  const std::string on = R"("num_hidden_layers": 3, "use_sliding_window": true, "sliding_window": 1024, )";
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}) {
    EXPECT_EQ(windows_of(architecture, R"("num_hidden_layers": 2, "sliding_window": 1024)"),
              std::vector({0, 0}));
    EXPECT_EQ(windows_of(architecture, on + R"("max_window_layers": 4)"), std::vector({0, 0, 0}));
    EXPECT_EQ(windows_of(architecture, on + R"("max_window_layers": 0)"), std::vector({1024, 1024, 1024}));
    EXPECT_EQ(windows_of(architecture, on + R"("max_window_layers": 2)"), std::vector({0, 0, 1024}));
    const std::string absent =
        R"("num_hidden_layers": 1, "use_sliding_window": true, "max_window_layers": 0, "sliding_window": null)";
    EXPECT_EQ(windows_of(architecture, absent), std::vector({0}));
  }
}

TEST(FamiliesTest, GemmaHasALayerThatLooksAtAllAmongThoseWithAWindow) {
  EXPECT_EQ(windows_of("Gemma2ForCausalLM", R"("num_hidden_layers": 3, "sliding_window": 32)"),
            std::vector({32, 0, 32}));
  EXPECT_EQ(windows_of("Gemma3ForCausalLM", R"("num_hidden_layers": 7, "sliding_window": 32)"),
            std::vector({32, 32, 32, 32, 32, 0, 32}));
}

TEST(FamiliesTest, Gemma4sLastLayerLooksAtAllAndThoseThatShareKeepNothing) {
  const std::string seven = R"("num_hidden_layers": 7, "sliding_window": 32)";
  EXPECT_EQ(windows_of("Gemma4ForCausalLM", seven), std::vector({32, 32, 32, 32, 32, 0, 0}));
  EXPECT_EQ(windows_of("Gemma4ForCausalLM", seven + R"(, "num_kv_shared_layers": 1)"),
            std::vector({32, 32, 32, 32, 32, 0}));
}

TEST(FamiliesTest, Gemma4sHeadsMayBeNamedForEachLayerThatLooksAtAll) {
  const StateDeclarations states = states_of("Gemma4ForCausalLM", R"("num_hidden_layers": 2,
      "layer_types": ["sliding_attention", "full_attention"], "attention_k_eq_v": true,
      "per_layer_config": {"01": {"head_dim": 128, "num_key_value_heads": 2}})");
  const StateSpec local = states.spec_of(StateId{0}), full = states.spec_of(StateId{1});
  EXPECT_EQ(std::pair(local.num_kv_heads, local.head_dim), std::pair(4, 256));
  EXPECT_EQ(std::pair(full.num_kv_heads, full.head_dim), std::pair(2, 128));
}

TEST(FamiliesTest, LayersWithoutAWindowFollowEachFamilysPattern) {
  const auto of_layers = [](const char* architecture, int layers, const std::string& keys = "") {
    return windows_of(architecture, "\"num_hidden_layers\": " + std::to_string(layers) + keys);
  };
  const std::string window = R"(, "sliding_window": 32)";
  EXPECT_EQ(of_layers("Olmo2ForCausalLM", 2), std::vector({0, 0}));
  EXPECT_EQ(of_layers("Olmo3ForCausalLM", 5, window), std::vector({32, 32, 32, 0, 32}));
  EXPECT_EQ(of_layers("Exaone4ForCausalLM", 4, window), std::vector({32, 32, 32, 0}));
  EXPECT_EQ(of_layers("Exaone4ForCausalLM", 3, window + R"(, "sliding_window_pattern": 2)"),
            std::vector({32, 0, 32}));
  EXPECT_EQ(of_layers("Exaone4ForCausalLM", 2, R"(, "sliding_window": null)"), std::vector({0, 0}));
  EXPECT_EQ(of_layers("Cohere2ForCausalLM", 4, window + R"(, "num_attention_heads": 4)"),
            std::vector({32, 32, 32, 0}));
  EXPECT_EQ(of_layers("Phi3ForCausalLM", 2), std::vector({0, 0}));
  EXPECT_EQ(of_layers("Phi3ForCausalLM", 2, window), std::vector({32, 32}));
  EXPECT_EQ(of_layers("Ministral3ForCausalLM", 1, R"(, "rope_parameters": {"rope_theta": 10000})"),
            std::vector({0}));
}

TEST(FamiliesTest, GptOssHasAWindowOnEveryOtherLayerAndRefusesAnotherGate) {
  const std::string keys = R"("num_hidden_layers": 3, "rope_scaling": {"rope_type": "yarn", "factor": 32,
      "original_max_position_embeddings": 4096, "truncate": false})";
  EXPECT_EQ(windows_of("GptOssForCausalLM", keys), std::vector({128, 0, 128}));
  EXPECT_EQ(windows_of("GptOssForCausalLM", keys + R"(, "sliding_window": 32, "layer_types":
      ["full_attention", "full_attention", "sliding_attention"])"),
            std::vector({0, 0, 32}));
  const ModelSpec spec = spec_of("GptOssForCausalLM", keys);
  EXPECT_EQ(spec.vocab_size, 201088);
  EXPECT_EQ(spec.num_heads * spec.head_dim, 4096);
  EXPECT_EQ(spec.max_model_len, 131072);
  EXPECT_NE(refusal_of("GptOssForCausalLM", keys + R"(, "swiglu_limit": 5)").find("swiglu_limit"),
            std::string::npos);
  EXPECT_NE(refusal_of("GptOssForCausalLM", R"("hidden_size": 64)").find("rope_parameters"),
            std::string::npos);
}

TEST(FamiliesTest, ANullWindowIsNone) {
  const std::string none =
      R"("num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "sliding_window": null)";
  for (const char* architecture : {"Olmo3ForCausalLM", "Cohere2ForCausalLM", "Exaone4ForCausalLM"})
    EXPECT_EQ(windows_of(architecture, none), std::vector({0, 0})) << architecture;
}

TEST(FamiliesTest, NullHeadsAreAsManyAsHeadsAndOfEvenShares) {
  const ModelSpec ernie = spec_of("Ernie4_5ForCausalLM", R"("hidden_size": 64, "num_attention_heads": 4,
      "num_key_value_heads": null, "head_dim": null)");
  EXPECT_EQ(ernie.num_kv_heads, 4);
  EXPECT_EQ(ernie.head_dim, 16);
}

TEST(FamiliesTest, Olmo3MayHaveRotaryParametersOfEachTypeOfLayers) {
  const std::string both = R"("rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 8,
      "original_max_position_embeddings": 8192}, "sliding_attention": {"rope_type": "default"}})";
  EXPECT_EQ(spec_of("Olmo3ForCausalLM", both).max_model_len, 65536);
}

TEST(FamiliesTest, WhatHunyuanAndMinistralCannotDoWithIsRefusedByName) {
  EXPECT_NE(refusal_of("HunYuanDenseV1ForCausalLM", R"("use_cla": true)").find("\"use_cla\""),
            std::string::npos);
  EXPECT_NE(refusal_of("HunYuanDenseV1ForCausalLM", R"("use_qk_norm": false)").find("\"use_qk_norm\""),
            std::string::npos);
  EXPECT_NE(
      refusal_of("Ministral3ForCausalLM", R"("hidden_size": 64)").find("\"rope_parameters\" is missing"),
      std::string::npos);
  const std::string scaled = R"("rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1})";
  EXPECT_NE(refusal_of("Ministral3ForCausalLM", scaled).find("original_max_position_embeddings"),
            std::string::npos);
}

TEST(FamiliesTest, TheTextPartOfMistral3IsOfTheFamilyThatItNames) {
  const std::string older = R"("text_config": {"num_hidden_layers": 1, "hidden_size": 64})";
  const std::string newer = R"("text_config": {"num_hidden_layers": 1, "hidden_size": 64,
      "model_type": "ministral3", "rope_parameters": {"rope_theta": 10000}})";
  EXPECT_EQ(windows_of("Mistral3ForConditionalGeneration", older), std::vector({4096}));
  EXPECT_EQ(windows_of("Mistral3ForConditionalGeneration", newer), std::vector({0}));
  const std::string other = R"("text_config": {"model_type": "mistral4"})";
  EXPECT_NE(refusal_of("Mistral3ForConditionalGeneration", other).find("is \"mistral4\""), std::string::npos);
}

TEST(FamiliesTest, SmolLm3HasAWindowWhereItHasNoPositionsAndOnlyIfToldTo) {
  const std::string keys = R"("num_hidden_layers": 5, "sliding_window": 32)";
  EXPECT_EQ(windows_of("SmolLM3ForCausalLM", keys), std::vector({0, 0, 0, 0, 0}));
  EXPECT_EQ(windows_of("SmolLM3ForCausalLM", keys + R"(, "use_sliding_window": true)"),
            std::vector({0, 0, 0, 32, 0}));
  EXPECT_EQ(windows_of("SmolLM3ForCausalLM",
                       keys + R"(, "use_sliding_window": true, "no_rope_layers": [0, 1, 1, 1, 0])"),
            std::vector({32, 0, 0, 0, 32}));
  EXPECT_NE(refusal_of("SmolLM3ForCausalLM", R"("num_hidden_layers": 5, "no_rope_layers": [0])")
                .find("\"no_rope_layers\" names 1 layers; there are 5"),
            std::string::npos);
}

TEST(FamiliesTest, TextPartsOfModelsOfSeveralKindsOfInputAreReadFromTheirTextConfig) {
  const std::string text = R"("text_config": {"num_hidden_layers": 7, "vocab_size": 1000},
                              "vision_config": {"num_hidden_layers": 9})";
  for (const char* architecture :
       {"Mistral3ForConditionalGeneration", "Qwen3VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration", "Cohere2VisionForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration"}) {
    EXPECT_EQ(spec_of(architecture, text).num_layers, 7) << architecture;
    EXPECT_EQ(spec_of(architecture, text).vocab_size, 1000) << architecture;
  }
}

TEST(FamiliesTest, EmbeddingsAreTiedAsTheTextPartSaysOrElseTheWhole) {
  const auto ties = [](const std::string& text, const std::string& whole) {
    return ModelConfig::from_json(R"({"text_config": {"vocab_size": 8)" + text + "}" + whole + "}",
                                  "config.json")
        .ties_word_embeddings(false);
  };
  const std::string tied = R"(, "tie_word_embeddings": true)", apart = R"(, "tie_word_embeddings": false)";
  EXPECT_FALSE(ties("", ""));
  EXPECT_TRUE(ties("", tied));
  EXPECT_TRUE(ties(tied, ""));
  EXPECT_TRUE(ties(tied, apart));
  EXPECT_FALSE(ties(apart, tied));
}

TEST(FamiliesTest, QwensLayerTypesCountBeforeMaxWindowLayers) {
  const std::string on = R"("num_hidden_layers": 2, "use_sliding_window": true, "sliding_window": 1024, )";
  const std::string some = R"("layer_types": ["sliding_attention", "full_attention"])";
  const std::string none = R"("max_window_layers": 0, "layer_types": ["full_attention", "full_attention"])";
  const std::string other = R"("layer_types": ["sliding_attention", "linear_attention"])";
  const std::string few = R"("layer_types": ["full_attention"])";
  EXPECT_EQ(windows_of("Qwen3ForCausalLM", on + some), std::vector({1024, 0}));
  EXPECT_EQ(windows_of("Qwen3ForCausalLM", on + none), std::vector({0, 0}));
  EXPECT_NE(refusal_of("Qwen3ForCausalLM", on + other).find("\"layer_types\" has \"linear_attention\""),
            std::string::npos);
  EXPECT_NE(refusal_of("Qwen3ForCausalLM", on + few).find("\"layer_types\" names 1 layers; there are 2"),
            std::string::npos);
}

TEST(FamiliesTest, Gemma3IsReadFromItsTextConfig) {
  const std::string text = R"("text_config": {"num_hidden_layers": 7, "head_dim": 128, "vocab_size": 1000},
                              "vision_config": {"num_hidden_layers": 9})";
  const ModelSpec gemma = spec_of("Gemma3ForConditionalGeneration", text);
  EXPECT_EQ(gemma.num_layers, 7);
  EXPECT_EQ(gemma.head_dim, 128);
  EXPECT_EQ(gemma.vocab_size, 1000);
  EXPECT_EQ(gemma.max_model_len, 131072);
}

TEST(FamiliesTest, Gemma3MayHaveRotaryParametersOfEachTypeOfLayers) {
  const std::string both = R"("rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8},
                                                  "sliding_attention": {"rope_theta": 5000}})";
  EXPECT_EQ(refusal_of("Gemma3ForCausalLM", both), "none");
  const std::string one = R"("rope_parameters": {"sliding_attention": {"rope_theta": 5000}})";
  EXPECT_NE(refusal_of("Gemma3ForCausalLM", one).find("\"rope_parameters.full_attention\" is missing"),
            std::string::npos);
  EXPECT_NE(refusal_of("LlamaForCausalLM", both).find("not supported for this family"), std::string::npos);
}

TEST(FamiliesTest, WhatTheyCannotDoIsRefusedByName) {
  const std::tuple<const char*, const char*, const char*> cases[] = {
      {"LlamaForCausalLM", R"("hidden_act": "gelu")", "\"hidden_act\" is \"gelu\""},
      {"LlamaForCausalLM", R"("num_attention_heads": 6, "num_key_value_heads": 4)", "no multiple"},
      {"MixtralForCausalLM", R"("hidden_act": "gelu_pytorch_tanh")", "\"hidden_act\" is no \"silu\""},
      {"Qwen3MoeForCausalLM", R"("hidden_act": "gelu_new")", "\"hidden_act\" is no \"silu\""},
      {"Qwen3_5ForCausalLM", R"("hidden_act": "gelu_pytorch_tanh")", "activation of Gated DeltaNet"},
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
      {"Gemma2ForCausalLM", R"("hidden_activation": "gelu")", "\"hidden_activation\" is \"gelu\""},
      {"StableLmForCausalLM", R"("qk_layernorm": true)", "\"qk_layernorm\" is true"},
      {"Starcoder2ForCausalLM", R"("hidden_act": "gelu")", "\"hidden_act\" is \"gelu\""},
      {"Gemma3ForCausalLM", R"("use_bidirectional_attention": true)", "use_bidirectional_attention"},
      {"Gemma4ForCausalLM", R"("use_bidirectional_attention": "all")", "use_bidirectional_attention"},
      {"Gemma4ForCausalLM", R"("num_kv_shared_layers": 26)", "\"num_kv_shared_layers\" leaves no layer"},
      {"Gemma4ForCausalLM", R"("num_kv_shared_layers": 30)", "\"num_kv_shared_layers\""},
      {"Gemma4ForCausalLM", R"("attention_k_eq_v": true, "num_global_key_value_heads": 3)",
       "no multiple of num_global_key_value_heads 3"},
      {"Gemma4ForCausalLM", R"("enable_moe_block": true)", "\"num_experts\""},
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
