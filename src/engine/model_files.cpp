#include "engine/model_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/module.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization/quantized_weights.h"

namespace quire {
namespace {

// Beside this library, in the installed tree as in the build tree.
std::filesystem::path bundled_model_directory() {
  const auto directory = library_folder().parent_path() / "share" / "quire" / "models" / "toy";
  if (!std::filesystem::is_directory(directory))
    fail("{}: the bundled model is not there; name a model directory", directory.string());
  return directory;
}

bool has_weights(const std::filesystem::path& directory) {
  std::error_code ec;
  return std::filesystem::exists(directory / "model.safetensors", ec) ||
         std::filesystem::exists(directory / "model.safetensors.index.json", ec);
}

}  // namespace

std::filesystem::path find_model_directory(const std::string& model) {
  if (model.empty()) return bundled_model_directory();
  if (std::error_code ec; !std::filesystem::is_directory(model, ec))
    fail("{}: {}; a model is a Hugging Face checkpoint directory or a .gguf file", model,
         std::filesystem::exists(model, ec) ? "no directory" : "no such directory");
  return model;
}

ModelConfig read_config(const std::filesystem::path& directory) {
  ModelConfig config = ModelConfig::from_file(directory / "config.json");
  if (config.dtype() || !has_weights(directory)) return config;
  try {
    config.suppose_dtype(Checkpoint(directory).dtype());
  } catch (const Error&) {  // whoever reads the weights says it
  }
  return config;
}

std::unique_ptr<WeightSource> open_formats(const std::filesystem::path& directory,
                                           const ModelConfig& config) {
  QuantizationMethod quantization = find_quantization(config, directory);
  if (!quantization) return nullptr;
  if (!has_weights(directory))
    fail("{}: the sizes of quantised weights are in their files' headers, and there is no model.safetensors",
         directory.string());
  return std::make_unique<QuantizedWeights>(directory, std::move(quantization));
}

ModelFiles open_model(const std::string& model) {
  if (const auto gguf = find_gguf(model); !gguf.empty()) return open_gguf(gguf);
  const std::filesystem::path directory = find_model_directory(model);
  ModelFiles files{directory, read_config(directory), read_generation_config(directory)};
  if (std::error_code ec; std::filesystem::exists(directory / "tokenizer.json", ec))
    files.tokenizer.emplace(Tokenizer::from_folder(directory));
  const QuantizationMethod quantization = find_quantization(files.config, directory);
  files.is_quantized = quantization != nullptr;
  files.open_weights = [directory, quantization]() -> std::unique_ptr<WeightSource> {
    if (quantization) return std::make_unique<QuantizedWeights>(directory, quantization);
    return std::make_unique<Checkpoint>(directory);
  };
  files.load_chat_template = [directory](const ChatTemplate* given) {
    return quire::load_chat_template(directory, given);
  };
  return files;
}

GivenDefaults given_defaults(GenerationConfig authors, const EngineConfig& config) {
  GivenDefaults given{{}, std::move(authors)};
  if (!config.chat_template.empty()) given.chat_template = read_chat_template(config.chat_template);
  if (config.generation_config != "auto") {
    const std::filesystem::path folder = config.generation_config;
    const bool is_none = folder == "vllm";
    if (std::error_code ec; !is_none && !std::filesystem::exists(folder / "generation_config.json", ec))
      fail("generation_config is {}; it must be auto, vllm or a folder with a generation_config.json",
           in_quotes(config.generation_config));
    const std::vector<std::int32_t> own = std::move(given.generation.eos_token_ids);
    given.generation = is_none ? GenerationConfig() : read_generation_config(folder);
    if (given.generation.eos_token_ids.empty()) given.generation.eos_token_ids = own;
  }
  if (config.override_generation_config.empty()) return given;
  const ConfigObject over(config.override_generation_config, "override_generation_config");
  constexpr std::array<std::string_view, 6> kKeys = {"temperature",        "top_p",         "top_k", "min_p",
                                                     "repetition_penalty", "max_new_tokens"};
  for (const std::string& key : over.keys())
    if (std::ranges::find(kKeys, key) == kKeys.end())
      over.fail_at(key, "is none of " + join_text(kKeys, ", "));
  given.generation = parse_generation_config(over, std::move(given.generation));
  return given;
}

}  // namespace quire
