#include "checkpoint/quantization/quantized_weights.h"

#include <algorithm>
#include <ranges>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace quire {
namespace {

using MakeMethod = QuantizationMethod (*)(const ConfigObject&);
constexpr std::pair<std::string_view, MakeMethod> kMethods[] = {
    {"fp8", make_fp8},           {"compressed-tensors", make_compressed_tensors},
    {"modelopt", make_modelopt}, {"gptq", make_gptq},
    {"awq", make_awq},           {"bitsandbytes", make_bitsandbytes},
    {"mxfp4", make_mxfp4},
};

constexpr std::string_view kOptionalScales[] = {".input_scale",      ".input_global_scale",
                                                ".input_zero_point", ".activation_scale",
                                                ".output_scale",     ".q_scale",
                                                ".k_scale",          ".v_scale",
                                                ".kv_scale",         ".prob_scale",
                                                ".k_zero_point",     ".v_zero_point",
                                                ".output_zero_point"};

std::optional<ConfigObject> find_config(const ModelConfig& model, const std::filesystem::path& directory) {
  if (auto config = model.quantization_config()) return config;
  const std::filesystem::path path = directory / "hf_quant_config.json";
  std::error_code ec;
  if (!std::filesystem::exists(path, ec)) return {};
  auto config = ConfigObject::read_file(path).find_object("quantization");
  if (config && !config->contains("quant_algo") && !config->contains("quant_method")) {
    log_info("{}: no weights are quantised, but a KV cache, which --kv-cache-dtype fp8 gives it",
             path.string());
    return {};
  }
  return config;
}

// AutoGPTQ writes a bias for every layer: zeros, where the architecture has none.
bool is_zero_bias(Checkpoint& file, const std::string& name) {
  constexpr std::string_view kBias = ".bias";
  if (!name.ends_with(kBias)) return false;
  const SafetensorsEntry* const bias = file.find_entry(name);
  if (file.find_entry(name.substr(0, name.size() - kBias.size()) + ".qweight") == nullptr ||
      bias->shape.size() != 1)
    return false;
  return std::ranges::all_of(file.take_vector(name, bias->shape.front()),
                             [](float value) { return value == 0; });
}

}  // namespace

QuantizationMethod find_quantization(const ModelConfig& model, const std::filesystem::path& directory) {
  const std::optional<ConfigObject> config = find_config(model, directory);
  if (!config) return nullptr;
  // Older checkpoints of ModelOpt have a file of their own, which names an algorithm alone.
  const std::string name =
      config->get_string("quant_method", config->contains("quant_algo") ? "modelopt" : "");
  const auto* const found =
      std::ranges::find_if(kMethods, [&](const auto& method) { return name == method.first; });
  if (found == std::end(kMethods)) {
    config->fail_at("quant_method",
                    format_text("{}; {} are supported",
                                name.empty() ? "is missing" : in_quotes(name) + " is not supported",
                                join_text(std::views::keys(kMethods), ", ")));
  }
  for (const char* key : {"kv_cache_scheme", "kv_cache_quant_algo"}) {
    if (config->contains(key))
      log_info("{}: the checkpoint is made for a KV cache of 8 bits, which --kv-cache-dtype fp8 gives it",
               key);
  }
  return found->second(*config);
}

std::vector<std::string> QuantizedWeights::unclaimed() const {
  std::vector<std::string> names = file_.unclaimed();
  std::erase_if(names, [this](const std::string& name) {
    return std::ranges::any_of(kOptionalScales,
                               [&](std::string_view ending) { return name.ends_with(ending); }) ||
           is_zero_bias(file_, name);
  });
  return names;
}

}  // namespace quire
