#pragma once

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "backends/cpu/simd/isa.h"
#include "checkpoint/safetensors.h"
#include "kvcache/ids.h"
#include "quire/engine_config.h"

namespace quire::testing {

// The small Qwen3 checkpoints of tests/golden with what Hugging Face transformers computes for them.
inline const std::vector<std::string> kGoldenModels = {"qwen3", "qwen3-untied", "qwen3-yarn", "qwen3-hub",
                                                       "qwen3-bf16-file"};

inline std::filesystem::path golden_directory(const std::string& name) {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / name;
}

inline EngineConfig golden_config(const std::string& name, const std::string& dtype = "float32") {
  EngineConfig config;
  config.model = golden_directory(name).string();
  config.dtype = dtype;
  config.max_num_seqs = 8;
  return config;
}

// "qwen3", "float32", … as the name of a test.
inline std::string test_name(std::initializer_list<std::string> parts) {
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : "_") + part;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

inline std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (const CpuIsa isa : available_isas()) names.emplace_back(to_string(isa));
  return names;
}

inline int num_golden_prompts(const std::string& model) {
  const SafetensorsFile file(golden_directory(model) / "expected.safetensors");
  int count = 0;
  while (file.tensors().contains("prompt." + std::to_string(count))) ++count;
  return count;
}

// prompt.N or greedy.N of a model's expected.safetensors.
inline std::vector<TokenId> golden_ids(const std::string& model, const std::string& tensor) {
  const SafetensorsFile file(golden_directory(model) / "expected.safetensors");
  std::vector<TokenId> ids(file.tensor(tensor).bytes / sizeof(TokenId));
  file.read(tensor, 0, std::as_writable_bytes(std::span(ids)));
  return ids;
}

}  // namespace quire::testing
