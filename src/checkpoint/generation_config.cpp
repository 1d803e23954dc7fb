#include "checkpoint/generation_config.h"

namespace quire {

GenerationConfig parse_generation_config(const ConfigObject& object) {
  GenerationConfig config;
  config.eos_token_ids = object.get_token_ids("eos_token_id");
  config.temperature = object.find_float("temperature", {.min = 0, .max = 1e4});
  config.top_p = object.find_float("top_p", kFraction);
  config.min_p = object.find_float("min_p", {.min = 0, .max = 1});
  config.repetition_penalty = object.find_float("repetition_penalty", {.min = 1e-4, .max = 1e4});
  config.top_k = object.find_int("top_k", {.min = -1});
  config.max_new_tokens = object.find_int("max_new_tokens");
  return config;
}

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "generation_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return {};
  return parse_generation_config(ConfigObject::read_file(path));
}

}  // namespace quire
