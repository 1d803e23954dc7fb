#include "inspect/shapes.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "inspect/random_weights.h"

namespace quire {
namespace {

// From the config.json files of Qwen, meta-llama, mistralai, openai-community, openbmb, ibm-granite,
// bigscience and google. Of each architecture: the keys that its models share where they are not its
// defaults; and of each model its layers, hidden size, intermediate size, heads, heads of keys and values,
// vocabulary, and keys of its own, which count before those shared.
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
   "gemma-3-27b": [62, 5376, 21504, 32, 16, 262208, {"head_dim": 128, "query_pre_attn_scalar": 168}]}]
])";

std::vector<Shape> read_shapes() {
  std::vector<Shape> shapes;
  for (const OrderedJson& family : OrderedJson::parse(kPublished)) {
    for (const auto& [name, sizes] : family[2].items()) {
      OrderedJson config = {{"architectures", OrderedJson::array({family[0]})},
                            {"eos_token_id", sizes[5].get<int>() - 1},
                            {"hidden_size", sizes[1]},
                            {"intermediate_size", sizes[2]},
                            {"num_attention_heads", sizes[3]},
                            {"num_hidden_layers", sizes[0]},
                            {"num_key_value_heads", sizes[4]},
                            {"torch_dtype", "bfloat16"},
                            {"vocab_size", sizes[5]}};
      config.update(family[1], /*merge_objects=*/true);
      if (sizes.size() > 6) config.update(sizes[6], true);
      shapes.push_back({name, config.dump()});
    }
  }
  return shapes;
}

}  // namespace

const std::vector<Shape>& published_shapes() {
  static const std::vector<Shape> shapes = read_shapes();
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
  return ModelConfig::from_json(shape.config, "shape " + shape.name);
}

ModelFiles random_model(const Shape& shape) {
  return {
      "shape " + shape.name, shape_config(shape), {}, [] { return std::make_unique<RandomWeights>(); }, {}};
}

}  // namespace quire
