#include "engine/model_files.h"

#include "base/error.h"
#include "base/module.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantization/quantized_weights.h"
#include "engine/gguf_model.h"

namespace quire {
namespace {

// Beside this library, in the installed tree as in the build tree.
std::filesystem::path bundled_model_directory() {
  const auto directory = library_folder().parent_path() / "share" / "quire" / "models" / "toy";
  if (!std::filesystem::is_directory(directory))
    fail("{}: the bundled model is not there; name a model directory", directory.string());
  return directory;
}

}  // namespace

std::filesystem::path find_model_directory(const std::string& model) {
  if (model.empty()) return bundled_model_directory();
  if (std::error_code ec; !std::filesystem::is_directory(model, ec))
    fail("{}: no such directory; a model is a Hugging Face checkpoint directory or a .gguf file", model);
  return model;
}

std::unique_ptr<WeightSource> open_formats(const std::filesystem::path& directory,
                                           const ModelConfig& config) {
  QuantizationPtr quantization = find_quantization(config, directory);
  if (!quantization) return nullptr;
  std::error_code ec;
  if (!std::filesystem::exists(directory / "model.safetensors", ec) &&
      !std::filesystem::exists(directory / "model.safetensors.index.json", ec))
    fail("{}: the sizes of quantised weights are in their files' headers, and there is no model.safetensors",
         directory.string());
  return std::make_unique<QuantizedWeights>(directory, std::move(quantization));
}

ModelFiles open_model(const std::string& model) {
  if (const auto gguf = find_gguf(model); !gguf.empty()) return open_gguf(gguf);
  const std::filesystem::path directory = find_model_directory(model);
  ModelFiles files{directory,
                   ModelConfig::from_file(directory / "config.json"),
                   read_generation_config(directory),
                   {},
                   {}};
  std::error_code ec;
  if (const auto path = directory / "tokenizer.json"; std::filesystem::exists(path, ec)) {
    files.tokenizer.emplace(Tokenizer::from_file(path));
  }
  const QuantizationPtr quantization = find_quantization(files.config, directory);
  files.is_quantized = quantization != nullptr;
  files.open_weights = [directory, quantization]() -> std::unique_ptr<WeightSource> {
    if (quantization) return std::make_unique<QuantizedWeights>(directory, quantization);
    return std::make_unique<Checkpoint>(directory);
  };
  files.load_chat_template = [directory] { return quire::load_chat_template(directory); };
  return files;
}

}  // namespace quire
