#pragma once

#include <filesystem>
#include <string>

#include "engine/model_files.h"

namespace quire {

// The GGUF file that a MODEL means: itself, or the one in a folder without safetensors, where the parts of a
// split one count as one; empty: it means none. Error where a folder has several.
std::filesystem::path find_gguf(const std::string& model);

// A model that is one GGUF file: configuration, tokenizer and chat template are keys of it. Weights are read
// later.
ModelFiles open_gguf(const std::filesystem::path& path);

}  // namespace quire
