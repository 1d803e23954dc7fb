#include "inspect/shapes.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "inspect/random_weights.h"

namespace quire {
namespace {

constexpr char kQwen3[] = R"({"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000})";
constexpr char kQwen3Tied[] = R"({"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "tie_word_embeddings": true})";
constexpr char kQwen3Moe768[] = R"({"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "moe_intermediate_size": 768, "norm_topk_prob": true})";
constexpr char kQwen3Moe1536[] = R"({"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000,
    "moe_intermediate_size": 1536, "norm_topk_prob": true})";
constexpr char kQwen25[] = R"({"max_position_embeddings": 32768, "rope_theta": 1000000})";
constexpr char kQwen25Tied[] =
    R"({"max_position_embeddings": 32768, "rope_theta": 1000000, "tie_word_embeddings": true})";
constexpr char kLlama2[] = R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5})";
constexpr char kLlama31[] = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
    "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                     "original_max_position_embeddings": 8192}})";
constexpr char kLlama32[] = R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
    "tie_word_embeddings": true,
    "rope_scaling": {"rope_type": "llama3", "factor": 32, "low_freq_factor": 1, "high_freq_factor": 4,
                     "original_max_position_embeddings": 8192}})";
constexpr char kMistral01[] =
    R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": 4096})";
constexpr char kMistral03[] =
    R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1000000, "sliding_window": null})";
constexpr char kMistralNemo[] = R"({"head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "rope_theta": 1000000, "sliding_window": null})";
constexpr char kMistralSmall[] = R"({"head_dim": 128, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
    "rope_theta": 100000000, "sliding_window": null})";
constexpr char kMixtral7[] = R"({"max_position_embeddings": 32768})";
constexpr char kMixtral22[] = R"({"max_position_embeddings": 65536})";
constexpr char kMiniCpm[] =
    R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "scale_emb": 12, "dim_model_base": 256,
    "scale_depth": 1.4})";
constexpr char kMiniCpm4[] =
    R"({"max_position_embeddings": 32768, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4})";
constexpr char kMiniCpm4Untied[] =
    R"({"max_position_embeddings": 32768, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4,
    "tie_word_embeddings": false})";
constexpr char kGranite2[] =
    R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5000000,
    "tie_word_embeddings": true, "embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 8,
    "attention_multiplier": 0.015625})";
constexpr char kGranite8[] =
    R"({"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5000000,
    "tie_word_embeddings": true, "embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 16,
    "attention_multiplier": 0.0078125})";

constexpr char kGemma2[] = R"({"head_dim": 256})";
constexpr char kGemma2Large[] = R"({"head_dim": 128, "query_pre_attn_scalar": 144})";
constexpr char kGemma3Small[] =
    R"({"head_dim": 256, "max_position_embeddings": 32768, "sliding_window": 512})";
constexpr char kGemma3[] = R"({"head_dim": 256, "sliding_window": 1024,
    "rope_scaling": {"rope_type": "linear", "factor": 8}})";
constexpr char kGemma3Large[] = R"({"head_dim": 128, "sliding_window": 1024, "query_pre_attn_scalar": 168,
    "rope_scaling": {"rope_type": "linear", "factor": 8}})";

constexpr char kStableLm2[] = R"({"use_qkv_bias": true})";
constexpr char kStarCoder2Small[] =
    R"({"max_position_embeddings": 16384, "rope_theta": 999999.4420358813, "sliding_window": 4096})";
constexpr char kStarCoder2[] =
    R"({"max_position_embeddings": 16384, "rope_theta": 1000000, "sliding_window": 4096})";
constexpr char kStarCoder2Large[] = R"({"max_position_embeddings": 16384, "rope_theta": 100000,
    "sliding_window": 4096, "tie_word_embeddings": false})";

constexpr char kOlmo2[] = R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000})";
constexpr char kOlmo3[] = R"({"max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "rope_theta": 500000,
    "sliding_window": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1,
    "attention_factor": 1.2079441541679836, "original_max_position_embeddings": 8192}})";
constexpr char kPhi3Mini[] = R"({"sliding_window": 2047})";
constexpr char kPhi4[] = R"({"max_position_embeddings": 16384, "rope_theta": 250000})";
constexpr char kSmolLm3[] = R"({"max_position_embeddings": 65536, "rope_theta": 5000000})";
constexpr char kSeedOss[] = R"({"rope_theta": 10000000})";
constexpr char kHunyuan[] =
    R"({"head_dim": 128, "max_position_embeddings": 32768, "tie_word_embeddings": true,
    "rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 1}})";
constexpr char kExaone4[] = R"({"head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 1000000,
    "rope_scaling": {"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4,
                     "original_max_position_embeddings": 8192}})";
constexpr char kMinistral3[] =
    R"({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 16,
    "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
    "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}})";
constexpr char kMinistral3Tied[] = R"({"tie_word_embeddings": true, "rope_parameters": {"rope_type": "yarn",
    "rope_theta": 1000000, "factor": 16, "original_max_position_embeddings": 16384, "beta_fast": 32,
    "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}})";
constexpr char kGlm4[] = R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5})";
constexpr char kGlm4Large[] =
    R"({"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "attention_bias": false})";
constexpr char kCommandR7b[] =
    R"({"head_dim": 128, "logit_scale": 0.25, "max_position_embeddings": 132096, "rope_theta": 50000})";
constexpr char kCommandA[] =
    R"({"head_dim": 128, "logit_scale": 0.25, "max_position_embeddings": 131072, "rope_theta": 50000})";

}  // namespace

// From the config.json files of Qwen, meta-llama, mistralai, openai-community, openbmb, ibm-granite,
// bigscience, google, allenai, microsoft, HuggingFaceTB, ByteDance-Seed, tencent,
// baidu, LGAI-EXAONE, zai-org,
// CohereLabs, stabilityai and bigcode.
const std::vector<Shape>& published_shapes() {
  static const std::vector<Shape> shapes = {
      {"qwen3-0.6b", "Qwen3ForCausalLM", 28, 1024, 3072, 16, 8, 151936, kQwen3Tied},
      {"qwen3-1.7b", "Qwen3ForCausalLM", 28, 2048, 6144, 16, 8, 151936, kQwen3Tied},
      {"qwen3-4b", "Qwen3ForCausalLM", 36, 2560, 9728, 32, 8, 151936, kQwen3Tied},
      {"qwen3-8b", "Qwen3ForCausalLM", 36, 4096, 12288, 32, 8, 151936, kQwen3},
      {"qwen3-14b", "Qwen3ForCausalLM", 40, 5120, 17408, 40, 8, 151936, kQwen3},
      {"qwen3-32b", "Qwen3ForCausalLM", 64, 5120, 25600, 64, 8, 151936, kQwen3},
      {"qwen3-30b-a3b", "Qwen3MoeForCausalLM", 48, 2048, 6144, 32, 4, 151936, kQwen3Moe768},
      {"qwen3-235b-a22b", "Qwen3MoeForCausalLM", 94, 4096, 12288, 64, 4, 151936, kQwen3Moe1536},
      {"qwen2.5-0.5b", "Qwen2ForCausalLM", 24, 896, 4864, 14, 2, 151936, kQwen25Tied},
      {"qwen2.5-1.5b", "Qwen2ForCausalLM", 28, 1536, 8960, 12, 2, 151936, kQwen25Tied},
      {"qwen2.5-3b", "Qwen2ForCausalLM", 36, 2048, 11008, 16, 2, 151936, kQwen25Tied},
      {"qwen2.5-7b", "Qwen2ForCausalLM", 28, 3584, 18944, 28, 4, 152064, kQwen25},
      {"qwen2.5-14b", "Qwen2ForCausalLM", 48, 5120, 13824, 40, 8, 152064, kQwen25},
      {"qwen2.5-32b", "Qwen2ForCausalLM", 64, 5120, 27648, 40, 8, 152064, kQwen25},
      {"qwen2.5-72b", "Qwen2ForCausalLM", 80, 8192, 29568, 64, 8, 152064, kQwen25},
      {"llama-2-7b", "LlamaForCausalLM", 32, 4096, 11008, 32, 32, 32000, kLlama2},
      {"llama-2-13b", "LlamaForCausalLM", 40, 5120, 13824, 40, 40, 32000, kLlama2},
      {"llama-2-70b", "LlamaForCausalLM", 80, 8192, 28672, 64, 8, 32000, kLlama2},
      {"llama-3.1-8b", "LlamaForCausalLM", 32, 4096, 14336, 32, 8, 128256, kLlama31},
      {"llama-3.1-70b", "LlamaForCausalLM", 80, 8192, 28672, 64, 8, 128256, kLlama31},
      {"llama-3.1-405b", "LlamaForCausalLM", 126, 16384, 53248, 128, 8, 128256, kLlama31},
      {"llama-3.2-1b", "LlamaForCausalLM", 16, 2048, 8192, 32, 8, 128256, kLlama32},
      {"llama-3.2-3b", "LlamaForCausalLM", 28, 3072, 8192, 24, 8, 128256, kLlama32},
      {"mistral-7b-v0.1", "MistralForCausalLM", 32, 4096, 14336, 32, 8, 32000, kMistral01},
      {"mistral-7b-v0.3", "MistralForCausalLM", 32, 4096, 14336, 32, 8, 32768, kMistral03},
      {"mistral-nemo-12b", "MistralForCausalLM", 40, 5120, 14336, 32, 8, 131072, kMistralNemo},
      {"mistral-small-24b", "MistralForCausalLM", 40, 5120, 32768, 32, 8, 131072, kMistralSmall},
      {"mixtral-8x7b", "MixtralForCausalLM", 32, 4096, 14336, 32, 8, 32000, kMixtral7},
      {"mixtral-8x22b", "MixtralForCausalLM", 56, 6144, 16384, 48, 8, 32768, kMixtral22},
      {"gpt2", "GPT2LMHeadModel", 12, 768, 3072, 12, 12, 50257},
      {"gpt2-medium", "GPT2LMHeadModel", 24, 1024, 4096, 16, 16, 50257},
      {"gpt2-large", "GPT2LMHeadModel", 36, 1280, 5120, 20, 20, 50257},
      {"gpt2-xl", "GPT2LMHeadModel", 48, 1600, 6400, 25, 25, 50257},
      {"minicpm-2b", "MiniCPMForCausalLM", 40, 2304, 5760, 36, 36, 122753, kMiniCpm},
      {"minicpm4-0.5b", "MiniCPMForCausalLM", 24, 1024, 4096, 16, 2, 73448, kMiniCpm4},
      {"minicpm4-8b", "MiniCPMForCausalLM", 32, 4096, 16384, 32, 2, 73448, kMiniCpm4Untied},
      {"granite-3.1-2b", "GraniteForCausalLM", 40, 2048, 8192, 32, 8, 49155, kGranite2},
      {"granite-3.1-8b", "GraniteForCausalLM", 40, 4096, 12800, 32, 8, 49155, kGranite8},
      {"bloom-560m", "BloomForCausalLM", 24, 1024, 4096, 16, 16, 250880},
      {"bloom-1b1", "BloomForCausalLM", 24, 1536, 6144, 16, 16, 250880},
      {"bloom-1b7", "BloomForCausalLM", 24, 2048, 8192, 16, 16, 250880},
      {"bloom-3b", "BloomForCausalLM", 30, 2560, 10240, 32, 32, 250880},
      {"bloom-7b1", "BloomForCausalLM", 30, 4096, 16384, 32, 32, 250880},
      {"bloom-176b", "BloomForCausalLM", 70, 14336, 57344, 112, 112, 250880},
      {"gemma-2-2b", "Gemma2ForCausalLM", 26, 2304, 9216, 8, 4, 256000, kGemma2},
      {"gemma-2-9b", "Gemma2ForCausalLM", 42, 3584, 14336, 16, 8, 256000, kGemma2},
      {"gemma-2-27b", "Gemma2ForCausalLM", 46, 4608, 36864, 32, 16, 256000, kGemma2Large},
      {"gemma-3-270m", "Gemma3ForCausalLM", 18, 640, 2048, 4, 1, 262144, kGemma3Small},
      {"gemma-3-1b", "Gemma3ForCausalLM", 26, 1152, 6912, 4, 1, 262144, kGemma3Small},
      {"gemma-3-4b", "Gemma3ForCausalLM", 34, 2560, 10240, 8, 4, 262208, kGemma3},
      {"gemma-3-12b", "Gemma3ForCausalLM", 48, 3840, 15360, 16, 8, 262208, kGemma3},
      {"gemma-3-27b", "Gemma3ForCausalLM", 62, 5376, 21504, 32, 16, 262208, kGemma3Large},
      {"olmo-2-1b", "Olmo2ForCausalLM", 16, 2048, 8192, 16, 16, 100352, kOlmo2},
      {"olmo-2-7b", "Olmo2ForCausalLM", 32, 4096, 11008, 32, 32, 100352, kOlmo2},
      {"olmo-2-13b", "Olmo2ForCausalLM", 40, 5120, 13824, 40, 40, 100352, kOlmo2},
      {"olmo-2-32b", "Olmo2ForCausalLM", 64, 5120, 27648, 40, 8, 100352, kOlmo2},
      {"olmo-3-7b", "Olmo3ForCausalLM", 32, 4096, 11008, 32, 32, 100278, kOlmo3},
      {"olmo-3-32b", "Olmo3ForCausalLM", 64, 5120, 27648, 40, 8, 100278, kOlmo3},
      {"phi-3-mini-4k", "Phi3ForCausalLM", 32, 3072, 8192, 32, 32, 32064, kPhi3Mini},
      {"phi-4", "Phi3ForCausalLM", 40, 5120, 17920, 40, 10, 100352, kPhi4},
      {"smollm3-3b", "SmolLM3ForCausalLM", 36, 2048, 11008, 16, 4, 128256, kSmolLm3},
      {"seed-oss-36b", "SeedOssForCausalLM", 64, 5120, 27648, 80, 8, 155136, kSeedOss},
      {"hunyuan-7b", "HunYuanDenseV1ForCausalLM", 32, 4096, 14336, 32, 8, 128167, kHunyuan},
      {"ernie-4.5-0.3b", "Ernie4_5ForCausalLM", 18, 1024, 3072, 16, 2, 103424},
      {"exaone-4.0-32b", "Exaone4ForCausalLM", 64, 5120, 27392, 40, 8, 102400, kExaone4},
      {"ministral-3-3b", "Ministral3ForCausalLM", 26, 3072, 9216, 32, 8, 131072, kMinistral3Tied},
      {"ministral-3-8b", "Ministral3ForCausalLM", 34, 4096, 14336, 32, 8, 131072, kMinistral3},
      {"glm-4-9b", "Glm4ForCausalLM", 40, 4096, 13696, 32, 2, 151552, kGlm4},
      {"glm-4-32b", "Glm4ForCausalLM", 61, 6144, 23040, 48, 2, 151552, kGlm4Large},
      {"command-r7b", "Cohere2ForCausalLM", 32, 4096, 14336, 32, 8, 256000, kCommandR7b},
      {"command-a", "Cohere2ForCausalLM", 64, 12288, 36864, 96, 8, 256000, kCommandA},
      {"stablelm-2-1.6b", "StableLmForCausalLM", 24, 2048, 5632, 32, 32, 100352, kStableLm2},
      {"starcoder2-3b", "Starcoder2ForCausalLM", 30, 3072, 12288, 24, 2, 49152, kStarCoder2Small},
      {"starcoder2-7b", "Starcoder2ForCausalLM", 32, 4608, 18432, 36, 4, 49152, kStarCoder2},
      {"starcoder2-15b", "Starcoder2ForCausalLM", 40, 6144, 24576, 48, 4, 49152, kStarCoder2Large},
  };
  return shapes;
}

const Shape& find_shape(const std::string& name) {
  const std::vector<Shape>& shapes = published_shapes();
  const auto found =
      std::find_if(shapes.begin(), shapes.end(), [&](const Shape& shape) { return shape.name == name; });
  if (found != shapes.end()) return *found;
  std::string known;
  for (const Shape& shape : shapes) known += (known.empty() ? "" : ", ") + shape.name;
  fail("shape {} is not known; known are: {}", in_quotes(name), known);
}

ModelConfig shape_config(const Shape& shape) {
  OrderedJson config = {{"architectures", OrderedJson::array({shape.architecture})},
                        {"eos_token_id", shape.vocab_size - 1},
                        {"hidden_size", shape.hidden_size},
                        {"intermediate_size", shape.intermediate_size},
                        {"num_attention_heads", shape.num_heads},
                        {"num_hidden_layers", shape.num_layers},
                        {"num_key_value_heads", shape.num_kv_heads},
                        {"torch_dtype", "bfloat16"},
                        {"vocab_size", shape.vocab_size}};
  config.update(OrderedJson::parse(shape.others));
  return ModelConfig::from_json(config.dump(), "shape " + shape.name);
}

ModelFiles random_model(const Shape& shape) {
  return {
      "shape " + shape.name, shape_config(shape), {}, [] { return std::make_unique<RandomWeights>(); }, {}};
}

}  // namespace quire
