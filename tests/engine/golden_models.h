#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "backends/registry.h"
#include "base/error.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "kvcache/ids.h"
#include "models/model.h"
#include "quire/engine_config.h"

namespace quire::testing {

// More of them lie beside the project, or do not.
inline std::filesystem::path conformance_models() { return QUIRE_SOURCE_DIR "/../shared/conformance/models"; }

// Small quantised checkpoints, and broken ones, lie there, too.
inline std::filesystem::path quantized_folder() {
  return QUIRE_SOURCE_DIR "/../shared/conformance/quantised";
}

inline std::filesystem::path golden_directory(const std::string& name) {
  const std::filesystem::path own = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests" / "golden" / name;
  if (std::filesystem::exists(own)) return own;
  return name.starts_with("q-") ? quantized_folder() / name : conformance_models() / name;
}

// Those of tomorrow's families lie there, too, one with a configuration that cannot be read yet.
inline bool is_known_model(const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / "model.gguf")) return true;
  if (!std::filesystem::exists(directory / "config.json")) return false;
  try {
    find_model_family(ModelConfig::from_file(directory / "config.json").architecture());
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Small checkpoints with what Hugging Face transformers computes for them: those of tests/golden, and of
// those beside the project the ones of known families.
inline std::vector<std::string> golden_models() {
  std::set<std::string> names;
  for (const std::filesystem::path& folder : {golden_directory(""), conformance_models()}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (is_known_model(entry.path())) names.insert(entry.path().filename());
    }
  }
  return {names.begin(), names.end()};
}

// The quantised ones of known families; none where the folder is not there.
inline std::vector<std::string> quantized_models() {
  std::set<std::string> names;
  if (std::filesystem::exists(quantized_folder())) {
    for (const auto& entry : std::filesystem::directory_iterator(quantized_folder())) {
      const std::string name = entry.path().filename();
      if (name.starts_with("q-") && is_known_model(entry.path())) names.insert(name);
    }
  }
  return {names.begin(), names.end()};
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

inline int num_gpus() {
  const MachineReport machine = inspect_machine();
  return static_cast<int>(std::ranges::count(machine.gpus.devices, "", &DeviceInfo::problem));
}

// Whether each of its ranks has a device of its own.
inline bool has_devices(const EngineConfig& config) {
  return config.device == "cpu" || num_gpus() >= config.tensor_parallel_size;
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
  if (num_gpus() > 0) names.insert(names.end(), {"cuda", "cuda_deterministic"});
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
