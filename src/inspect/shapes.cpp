#include "inspect/shapes.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "inspect/random_weights.h"

namespace quire {

// From the config.json of Qwen/Qwen3-0.6B, -1.7B, -4B and -8B.
const std::vector<Shape>& published_shapes() {
  static const std::vector<Shape> shapes = {
      {"qwen3-0.6b", 28, 1024, 3072, 16, true},
      {"qwen3-1.7b", 28, 2048, 6144, 16, true},
      {"qwen3-4b", 36, 2560, 9728, 32, true},
      {"qwen3-8b", 36, 4096, 12288, 32, false},
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
  const OrderedJson config = {{"architectures", OrderedJson::array({"Qwen3ForCausalLM"})},
                              {"attention_bias", false},
                              {"eos_token_id", shape.vocab_size - 1},
                              {"head_dim", 128},
                              {"hidden_act", "silu"},
                              {"hidden_size", shape.hidden_size},
                              {"intermediate_size", shape.intermediate_size},
                              {"max_position_embeddings", 40960},
                              {"num_attention_heads", shape.num_heads},
                              {"num_hidden_layers", shape.num_layers},
                              {"num_key_value_heads", shape.num_kv_heads},
                              {"rms_norm_eps", 1e-6},
                              {"rope_theta", 1000000},
                              {"tie_word_embeddings", shape.tied},
                              {"torch_dtype", "bfloat16"},
                              {"vocab_size", shape.vocab_size}};
  return ModelConfig::from_json(config.dump(), "shape " + shape.name);
}

ModelFiles random_model(const Shape& shape) {
  return {"shape " + shape.name, shape_config(shape), {}, std::make_unique<RandomWeights>(), {}};
}

}  // namespace quire
