#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "inspect/shapes.h"

namespace quire::test {

// Two layers of some architecture; `others` are further keys of its config.json.
inline Shape small_shape(const std::string& architecture = "Qwen3ForCausalLM",
                         std::string_view others = R"({"tie_word_embeddings": true})") {
  Json config = Json::parse(R"({"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96,
                                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
                                "eos_token_id": 319, "torch_dtype": "bfloat16"})");
  config["architectures"] = Json::array({architecture});
  config.update(Json::parse(others));
  return {"small", config.dump()};
}

}  // namespace quire::test
