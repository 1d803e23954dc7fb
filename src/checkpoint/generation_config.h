#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "checkpoint/config_object.h"

namespace quire {

// A checkpoint's generation_config.json: sampling defaults that its author recommends, and what ends an
// answer. As in vLLM, do_sample does not make sampling greedy: a request's temperature decides.
struct GenerationConfig {
  std::vector<std::int32_t> eos_token_ids;
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;
  std::optional<int> top_k;
  std::optional<int> max_new_tokens;
};

// Without the file: empty.
GenerationConfig read_generation_config(const std::filesystem::path& directory);
GenerationConfig parse_generation_config(const ConfigObject& object);

}  // namespace quire
