#include "engine/model_files.h"

#include "base/error.h"
#include "base/module.h"
#include "checkpoint/checkpoint.h"

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
    fail("{}: no such directory; a model is a Hugging Face checkpoint directory", model);
  return model;
}

ModelFiles open_model(const std::string& model) {
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
  files.open_weights = [directory] { return std::make_unique<Checkpoint>(directory); };
  return files;
}

}  // namespace quire
