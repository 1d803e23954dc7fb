#include "inspect/shapes.h"

#include <algorithm>
#include <cmath>
#include <ranges>

#include "base/error.h"
#include "base/json.h"
#include "ops/philox.h"

namespace quire {
namespace {

// From the config.json files of Qwen, meta-llama, mistralai, openai-community, openbmb, ibm-granite,
// bigscience, google, allenai, microsoft, HuggingFaceTB, ByteDance-Seed, tencent, baidu, LGAI-EXAONE,
// zai-org, CohereLabs, stabilityai, bigcode, LiquidAI and openai; Gemma 4's from the code of
// google-deepmind/gemma and AI-Hypercomputer/maxtext. Of each architecture: the keys that its models share
// where they are not its defaults; and of each model its sizes, in the order of kSizes, and keys of its own,
// which count before those shared.
constexpr char kPublished[] = R"([
 ["Qwen3ForCausalLM", {"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000},
  {"qwen3-0.6b": [28, 1024, 3072, 16, 8, 151936, {"tie_word_embeddings": true}],
   "qwen3-1.7b": [28, 2048, 6144, 16, 8, 151936, {"tie_word_embeddings": true}],
   "qwen3-4b": [36, 2560, 9728, 32, 8, 151936, {"tie_word_embeddings": true}],
   "qwen3-8b": [36, 4096, 12288, 32, 8, 151936], "qwen3-14b": [40, 5120, 17408, 40, 8, 151936],
   "qwen3-32b": [64, 5120, 25600, 64, 8, 151936]}],
 ["Qwen3MoeForCausalLM", {"head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1000000,
  "norm_topk_prob": true},
  {"qwen3-30b-a3b": [48, 2048, 6144, 32, 4, 151936, {"moe_intermediate_size": 768}],
   "qwen3-235b-a22b": [94, 4096, 12288, 64, 4, 151936, {"moe_intermediate_size": 1536}]}],
 ["Qwen3_5ForCausalLM", {"head_dim": 256, "max_position_embeddings": 262144, "rope_theta": 10000000},
  {"qwen3.5-0.8b": [24, 1024, 3584, 8, 2, 248320, {"linear_num_value_heads": 16, "tie_word_embeddings": true}],
   "qwen3.5-2b": [24, 2048, 6144, 8, 2, 248320, {"linear_num_value_heads": 16, "tie_word_embeddings": true}],
   "qwen3.5-4b": [32, 2560, 9216, 16, 4, 248320, {"tie_word_embeddings": true}],
   "qwen3.5-9b": [32, 4096, 12288, 16, 4, 248320],
   "qwen3.5-27b": [64, 5120, 17408, 24, 4, 248320, {"linear_num_value_heads": 48}]}],
 ["Qwen3_5MoeForCausalLM", {"max_position_embeddings": 262144, "rope_theta": 10000000},
  {"qwen3.5-35b-a3b": [40, 2048, 512, 16, 2, 248320]}],
 ["Qwen3NextForCausalLM", {"max_position_embeddings": 262144, "rope_theta": 10000000},
  {"qwen3-next-80b-a3b": [48, 2048, 5632, 16, 2, 151936]}],
 ["Qwen2ForCausalLM", {"max_position_embeddings": 32768, "rope_theta": 1000000},
  {"qwen2.5-0.5b": [24, 896, 4864, 14, 2, 151936, {"tie_word_embeddings": true}],
   "qwen2.5-1.5b": [28, 1536, 8960, 12, 2, 151936, {"tie_word_embeddings": true}],
   "qwen2.5-3b": [36, 2048, 11008, 16, 2, 151936, {"tie_word_embeddings": true}],
   "qwen2.5-7b": [28, 3584, 18944, 28, 4, 152064], "qwen2.5-14b": [48, 5120, 13824, 40, 8, 152064],
   "qwen2.5-32b": [64, 5120, 27648, 40, 8, 152064], "qwen2.5-72b": [80, 8192, 29568, 64, 8, 152064]}],
 ["LlamaForCausalLM", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
  {"llama-2-7b": [32, 4096, 11008, 32, 32, 32000], "llama-2-13b": [40, 5120, 13824, 40, 40, 32000],
   "llama-2-70b": [80, 8192, 28672, 64, 8, 32000]}],
 ["LlamaForCausalLM", {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000,
  "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                   "original_max_position_embeddings": 8192}},
  {"llama-3.1-8b": [32, 4096, 14336, 32, 8, 128256], "llama-3.1-70b": [80, 8192, 28672, 64, 8, 128256],
   "llama-3.1-405b": [126, 16384, 53248, 128, 8, 128256],
   "llama-3.2-1b": [16, 2048, 8192, 32, 8, 128256, {"tie_word_embeddings": true, "rope_scaling": {"factor": 32}}],
   "llama-3.2-3b": [28, 3072, 8192, 24, 8, 128256, {"tie_word_embeddings": true, "rope_scaling": {"factor": 32}}]}],
 ["MistralForCausalLM", {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "sliding_window": 4096},
  {"mistral-7b-v0.1": [32, 4096, 14336, 32, 8, 32000]}],
 ["MistralForCausalLM", {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5, "rope_theta": 1000000,
  "sliding_window": null},
  {"mistral-7b-v0.3": [32, 4096, 14336, 32, 8, 32768],
   "mistral-nemo-12b": [40, 5120, 14336, 32, 8, 131072, {"head_dim": 128, "max_position_embeddings": 131072}],
   "mistral-small-24b": [40, 5120, 32768, 32, 8, 131072, {"head_dim": 128, "rope_theta": 100000000}]}],
 ["MixtralForCausalLM", {},
  {"mixtral-8x7b": [32, 4096, 14336, 32, 8, 32000, {"max_position_embeddings": 32768}],
   "mixtral-8x22b": [56, 6144, 16384, 48, 8, 32768, {"max_position_embeddings": 65536}]}],
 ["GPT2LMHeadModel", {},
  {"gpt2": [12, 768, 3072, 12, 12, 50257], "gpt2-medium": [24, 1024, 4096, 16, 16, 50257],
   "gpt2-large": [36, 1280, 5120, 20, 20, 50257], "gpt2-xl": [48, 1600, 6400, 25, 25, 50257]}],
 ["MiniCPMForCausalLM", {"max_position_embeddings": 32768, "scale_emb": 12, "dim_model_base": 256,
  "scale_depth": 1.4},
  {"minicpm-2b": [40, 2304, 5760, 36, 36, 122753, {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}],
   "minicpm4-0.5b": [24, 1024, 4096, 16, 2, 73448],
   "minicpm4-8b": [32, 4096, 16384, 32, 2, 73448, {"tie_word_embeddings": false}]}],
 ["GraniteForCausalLM", {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5000000,
  "tie_word_embeddings": true, "embedding_multiplier": 12, "residual_multiplier": 0.22},
  {"granite-3.1-2b": [40, 2048, 8192, 32, 8, 49155, {"logits_scaling": 8, "attention_multiplier": 0.015625}],
   "granite-3.1-8b": [40, 4096, 12800, 32, 8, 49155, {"logits_scaling": 16, "attention_multiplier": 0.0078125}]}],
 ["BloomForCausalLM", {},
  {"bloom-560m": [24, 1024, 4096, 16, 16, 250880], "bloom-1b1": [24, 1536, 6144, 16, 16, 250880],
   "bloom-1b7": [24, 2048, 8192, 16, 16, 250880], "bloom-3b": [30, 2560, 10240, 32, 32, 250880],
   "bloom-7b1": [30, 4096, 16384, 32, 32, 250880], "bloom-176b": [70, 14336, 57344, 112, 112, 250880]}],
 ["Gemma2ForCausalLM", {"head_dim": 256},
  {"gemma-2-2b": [26, 2304, 9216, 8, 4, 256000], "gemma-2-9b": [42, 3584, 14336, 16, 8, 256000],
   "gemma-2-27b": [46, 4608, 36864, 32, 16, 256000, {"head_dim": 128, "query_pre_attn_scalar": 144}]}],
 ["Gemma3ForCausalLM", {"head_dim": 256, "max_position_embeddings": 32768, "sliding_window": 512},
  {"gemma-3-270m": [18, 640, 2048, 4, 1, 262144], "gemma-3-1b": [26, 1152, 6912, 4, 1, 262144]}],
 ["Gemma3ForCausalLM", {"head_dim": 256, "sliding_window": 1024,
  "rope_scaling": {"rope_type": "linear", "factor": 8}},
  {"gemma-3-4b": [34, 2560, 10240, 8, 4, 262208], "gemma-3-12b": [48, 3840, 15360, 16, 8, 262208],
   "gemma-3-27b": [62, 5376, 21504, 32, 16, 262208, {"head_dim": 128, "query_pre_attn_scalar": 168}]}],
 ["Gemma4ForCausalLM", {"sliding_window": 512, "final_logit_softcapping": 30},
  {"gemma-4-e2b": [35, 1536, 6144, 8, 1, 262144, {"sliding_window_pattern": 5, "num_kv_shared_layers": 20,
                                                  "use_double_wide_mlp": true}],
   "gemma-4-e4b": [42, 2560, 10240, 8, 2, 262144, {"num_kv_shared_layers": 18}]}],
 ["Gemma4ForCausalLM", {"sliding_window": 1024, "final_logit_softcapping": 30, "attention_k_eq_v": true,
  "max_position_embeddings": 262144, "hidden_size_per_layer_input": 0},
  {"gemma-4-12b": [48, 3840, 15360, 16, 8, 262144, {"num_global_key_value_heads": 1}],
   "gemma-4-26b-a4b": [30, 2816, 2112, 16, 8, 262144, {"num_global_key_value_heads": 2, "num_experts": 128,
                       "enable_moe_block": true, "top_k_experts": 8, "moe_intermediate_size": 704}],
   "gemma-4-31b": [60, 5376, 21504, 32, 16, 262144, {"num_global_key_value_heads": 4}]}],
 ["Olmo2ForCausalLM", {"max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 500000},
  {"olmo-2-1b": [16, 2048, 8192, 16, 16, 100352], "olmo-2-7b": [32, 4096, 11008, 32, 32, 100352],
   "olmo-2-13b": [40, 5120, 13824, 40, 40, 100352], "olmo-2-32b": [64, 5120, 27648, 40, 8, 100352]}],
 ["Olmo3ForCausalLM", {"max_position_embeddings": 65536, "rms_norm_eps": 1e-6, "rope_theta": 500000,
  "sliding_window": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1,
  "attention_factor": 1.2079441541679836, "original_max_position_embeddings": 8192}},
  {"olmo-3-7b": [32, 4096, 11008, 32, 32, 100278], "olmo-3-32b": [64, 5120, 27648, 40, 8, 100278]}],
 ["Phi3ForCausalLM", {},
  {"phi-3-mini-4k": [32, 3072, 8192, 32, 32, 32064, {"sliding_window": 2047}],
   "phi-4": [40, 5120, 17920, 40, 10, 100352, {"max_position_embeddings": 16384, "rope_theta": 250000}]}],
 ["SmolLM3ForCausalLM", {"max_position_embeddings": 65536, "rope_theta": 5000000},
  {"smollm3-3b": [36, 2048, 11008, 16, 4, 128256]}],
 ["SeedOssForCausalLM", {"rope_theta": 10000000}, {"seed-oss-36b": [64, 5120, 27648, 80, 8, 155136]}],
 ["HunYuanDenseV1ForCausalLM", {"head_dim": 128, "max_position_embeddings": 32768,
  "tie_word_embeddings": true, "rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 1}},
  {"hunyuan-7b": [32, 4096, 14336, 32, 8, 128167]}],
 ["Ernie4_5ForCausalLM", {}, {"ernie-4.5-0.3b": [18, 1024, 3072, 16, 2, 103424]}],
 ["Exaone4ForCausalLM", {"head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 1000000,
  "rope_scaling": {"rope_type": "llama3", "factor": 16, "low_freq_factor": 1, "high_freq_factor": 4,
                   "original_max_position_embeddings": 8192}},
  {"exaone-4.0-32b": [64, 5120, 27392, 40, 8, 102400]}],
 ["Ministral3ForCausalLM", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000000, "factor": 16,
  "original_max_position_embeddings": 16384, "beta_fast": 32, "beta_slow": 1, "mscale": 1,
  "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1}},
  {"ministral-3-3b": [26, 3072, 9216, 32, 8, 131072, {"tie_word_embeddings": true}],
   "ministral-3-8b": [34, 4096, 14336, 32, 8, 131072]}],
 ["Glm4ForCausalLM", {"max_position_embeddings": 32768, "rms_norm_eps": 1e-5},
  {"glm-4-9b": [40, 4096, 13696, 32, 2, 151552],
   "glm-4-32b": [61, 6144, 23040, 48, 2, 151552, {"attention_bias": false}]}],
 ["Cohere2ForCausalLM", {"head_dim": 128, "logit_scale": 0.25, "rope_theta": 50000},
  {"command-r7b": [32, 4096, 14336, 32, 8, 256000, {"max_position_embeddings": 132096}],
   "command-a": [64, 12288, 36864, 96, 8, 256000, {"max_position_embeddings": 131072}]}],
 ["Lfm2ForCausalLM", {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
  {"lfm2-350m": [16, 1024, 6656, 16, 8, 65536], "lfm2-700m": [16, 1536, 10240, 24, 8, 65536],
   "lfm2-1.2b": [16, 2048, 12288, 32, 8, 65536]}],
 ["Lfm2MoeForCausalLM", {"full_attn_idxs": [2, 6, 10, 14, 18, 21]},
  {"lfm2-8b-a1b": [24, 2048, 7168, 32, 8, 65536]}],
 ["StableLmForCausalLM", {"use_qkv_bias": true}, {"stablelm-2-1.6b": [24, 2048, 5632, 32, 32, 100352]}],
 ["Starcoder2ForCausalLM", {"max_position_embeddings": 16384, "rope_theta": 1000000, "sliding_window": 4096},
  {"starcoder2-3b": [30, 3072, 12288, 24, 2, 49152, {"rope_theta": 999999.4420358813}],
   "starcoder2-7b": [32, 4608, 18432, 36, 4, 49152],
   "starcoder2-15b": [40, 6144, 24576, 48, 4, 49152, {"rope_theta": 100000, "tie_word_embeddings": false}]}],
 ["GptOssForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 32, "beta_fast": 32, "beta_slow": 1,
  "truncate": false, "original_max_position_embeddings": 4096}},
  {"gpt-oss-20b": [24, 2880, 2880, 64, 8, 201088, {"num_local_experts": 32}],
   "gpt-oss-120b": [36, 2880, 2880, 64, 8, 201088]}]
])";

std::vector<Shape> read_shapes() {
  constexpr const char* kSizes[] = {"num_hidden_layers",   "hidden_size",         "intermediate_size",
                                    "num_attention_heads", "num_key_value_heads", "vocab_size"};
  std::vector<Shape> shapes;
  for (const OrderedJson& family : OrderedJson::parse(kPublished)) {
    for (const auto& [name, sizes] : family[2].items()) {
      OrderedJson config = {{"architectures", OrderedJson::array({family[0]})},
                            {"eos_token_id", sizes[5].get<int>() - 1},
                            {"torch_dtype", "bfloat16"}};
      for (std::size_t i = 0; i < std::size(kSizes); ++i) config[kSizes[i]] = sizes[i];
      config.update(family[1], /*merge_objects=*/true);
      if (sizes.size() > 6) config.update(sizes[6], true);
      shapes.push_back({name, config.dump()});
    }
  }
  return shapes;
}

// Random weights: values are drawn once for each scale; a tensor reads them round and round, from a place of
// its own. That makes a model as fast as memory can be copied.

// Prime, so that no two rows of a matrix begin at the same place.
constexpr std::int64_t kNumValues = 1'000'003;

std::vector<BFloat16> draw(float mean, float half_width) {
  std::vector<BFloat16> values(kNumValues);
  for (std::size_t i = 0; i < values.size(); i += 4) {
    const auto bits = philox4x32(0, {static_cast<std::uint32_t>(i), 0, 0, 0});
    for (std::size_t j = 0; j < 4 && i + j < values.size(); ++j) {
      const float uniform = static_cast<float>(bits[j]) * 0x1p-31F - 1.0F;
      values[i + j] = from_float<BFloat16>(mean + half_width * uniform);
    }
  }
  return values;
}

// FNV-1a, so that the values are the same in every run.
std::int64_t place_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return static_cast<std::int64_t>(hash % kNumValues);
}

}  // namespace

WeightTensorPtr RandomWeights::take(std::string_view name, const std::vector<std::int64_t>& shape) {
  const std::int64_t cols = shape.size() < 2 ? 0 : shape.back();
  Values& values = values_[cols];
  if (!values) {
    const float half_width = cols == 0 ? 0.1F : std::sqrt(3.0F / static_cast<float>(cols));
    values = std::make_shared<const std::vector<BFloat16>>(draw(cols == 0 ? 1.0F : 0.0F, half_width));
  }
  const auto read = [values, first = place_of(name)](std::int64_t row, const Tensor& dst) {
    auto* out = dst.data_as<std::byte>();
    std::int64_t place = (first + row * dst.dim(1)) % kNumValues;
    for (std::int64_t left = dst.numel(); left > 0;) {
      const std::int64_t count = std::min(left, kNumValues - place);
      convert(DType::kBF16, values->data() + place, dst.dtype(), out, static_cast<std::size_t>(count));
      out += static_cast<std::size_t>(count) * size_of(dst.dtype());
      left -= count;
      place = 0;
    }
  };
  return make_weight_tensor(std::string(name), DType::kBF16, shape, read);
}

const std::vector<Shape>& published_shapes() {
  static const std::vector<Shape> shapes = read_shapes();
  return shapes;
}

const Shape& find_shape(const std::string& name) {
  const std::vector<Shape>& shapes = published_shapes();
  const auto found = std::ranges::find(shapes, name, &Shape::name);
  if (found != shapes.end()) return *found;
  fail("shape {} is not known; known are: {}", in_quotes(name),
       join_text(std::views::transform(shapes, &Shape::name), ", "));
}

ModelConfig shape_config(const Shape& shape) {
  return ModelConfig::from_json(shape.config, "shape " + shape.name);
}

ModelFiles random_model(const Shape& shape) {
  return {
      "shape " + shape.name, shape_config(shape), {}, [] { return std::make_unique<RandomWeights>(); }, {}};
}

}  // namespace quire
