#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

#include "backends/registry.h"
#include "checkpoint/safetensors.h"
#include "kvcache/ids.h"
#include "quire/engine_config.h"

namespace quire::testing {

inline std::filesystem::path golden_directory(const std::string& name) {
  return std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / name;
}

// The small checkpoints of tests/golden with what Hugging Face transformers computes for them.
inline std::vector<std::string> golden_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory(""))) {
    if (std::filesystem::exists(entry.path() / "config.json")) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline EngineConfig golden_config(const std::string& name, const std::string& dtype = "float32") {
  EngineConfig config;
  config.model = golden_directory(name).string();
  config.dtype = dtype;
  config.max_num_seqs = 8;
  const char* device = std::getenv("QUIRE_TEST_DEVICE");
  config.device = device == nullptr ? "cpu" : device;
  return config;
}

// "qwen3", "float32", … as the name of a test.
inline std::string test_name(std::initializer_list<std::string> parts) {
  std::string name;
  for (const std::string& part : parts) name += (name.empty() ? "" : "_") + part;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// The kernels this machine can run: the CPU's instruction sets and, where there is a GPU, cuda and
// cuda_deterministic.
inline std::vector<std::string> kernel_names() {
  const MachineReport machine = inspect_machine();
  std::vector<std::string> names = machine.cpu_isas;
  if (machine.gpus.problem.empty()) names.insert(names.end(), {"cuda", "cuda_deterministic"});
  return names;
}

// Of them, those whose logits are bitwise the same in any batch.
inline std::vector<std::string> deterministic_kernel_names() {
  std::vector<std::string> names = kernel_names();
  std::erase(names, "cuda");
  return names;
}

inline void use_kernels(EngineConfig& config, const std::string& name) {
  const bool gpu = name.starts_with("cuda");
  config.device = gpu ? "cuda" : "cpu";
  config.cpu_isa = gpu ? "auto" : name;
  config.deterministic = name == "cuda_deterministic";
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
