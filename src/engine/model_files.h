#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/model_config.h"
#include "engine/hooks.h"
#include "ops/weight_source.h"
#include "quire/engine_config.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// What a model is made of, wherever it comes from. An engine is started from it.
struct ModelFiles {
  std::filesystem::path directory;
  ModelConfig config;
  GenerationConfig generation = {};
  // Opens the weights, for each rank anew; values are read as they are taken. From any thread.
  std::function<std::unique_ptr<WeightSource>()> open_weights = {};
  std::optional<Tokenizer> tokenizer = {};  // without one, prompts are token ids
  bool is_quantized = false;
  std::string where = {};  // it is, in errors; empty: the directory
  std::string name = {};   // for those whom it serves; empty: the directory's
  // What the files say about chat, with the template that is given where it is not null: nothing where there
  // is none, an Error where that is broken. Empty: no files.
  std::function<std::optional<CheckpointChatTemplate>(const ChatTemplate* given)> load_chat_template = {};

  // The weights where their formats are not known without; null: they are plain.
  std::unique_ptr<WeightSource> open_formats() const { return is_quantized ? open_weights() : nullptr; }
};

// What an engine is started with.
struct EngineSetup {
  EngineConfig config;
  ModelFiles model;
  EngineHooks hooks = {};
};

// A Hugging Face checkpoint directory as EngineConfig::model names it; empty: the bundled model. Error when
// there is no such directory.
std::filesystem::path find_model_directory(const std::string& model);
// Its config.json, with the type of its weights where that does not say it.
ModelConfig read_config(const std::filesystem::path& directory);
// Of a checkpoint directory, as ModelFiles'.
std::unique_ptr<WeightSource> open_formats(const std::filesystem::path& directory, const ModelConfig& config);
// Opens all files of a checkpoint directory, or a GGUF file; weights are read later.
ModelFiles open_model(const std::string& model);
// What the configuration has instead of the files' chat template, and makes of the sampling defaults that the
// author recommends. Error where that cannot be read.
struct GivenDefaults {
  std::optional<ChatTemplate> chat_template;
  GenerationConfig generation;
};
GivenDefaults given_defaults(GenerationConfig authors, const EngineConfig& config);

// The GGUF file that a MODEL means: itself, or the one in a folder without safetensors, where the parts of a
// split one count as one; empty: it means none. Error where a folder has several.
std::filesystem::path find_gguf(const std::string& model);

// A model that is one GGUF file (gguf_model.cpp): configuration, tokenizer and chat template are keys of it.
// Weights are read later.
ModelFiles open_gguf(const std::filesystem::path& path);

}  // namespace quire
