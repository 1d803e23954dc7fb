// NVIDIA ModelOpt: fp8 of whole matrices, channels or blocks, and NVFP4. A checkpoint may have both; what a
// matrix is follows from its tensors.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::string_view kAlgorithms[] = {
    "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"};
constexpr std::int64_t kFp8Block = 128;

void check_algorithm(const ConfigObject& config) {
  const std::string name = config.get_string("quant_algo", "");
  if (std::ranges::find(kAlgorithms, name) == std::end(kAlgorithms))
    config.fail_at("quant_algo",
                   format_text("{} is not supported; {} are", in_quotes(name), join_text(kAlgorithms, ", ")));
}

WeightGroup take_fp8(const StoredLinear& linear) {
  const SafetensorsEntry* scale = linear.find("weight_scale");
  MatrixShape block = kWholeMatrix;
  if (scale != nullptr && scale->shape.size() == 1 && scale->shape[0] == linear.rows()) {
    block.rows = 1;
  } else if (scale != nullptr && scale->shape.size() >= 2 &&
             std::ranges::any_of(scale->shape, [](std::int64_t count) { return count != 1; })) {
    block = {kFp8Block, kFp8Block};
  }
  WeightGroup group = take_e4m3(linear, "weight_scale", kFloatTypes, block);
  if (block.rows == 1) group.format.input = {.code = InputFormat::Code::kE4m3};
  if (block.rows == LinearFormat::kWhole && linear.has("input_scale"))
    add_static_input(group, linear, "input_scale");
  return group;
}

}  // namespace

QuantizationMethod make_modelopt(const ConfigObject& config) {
  const ModuleList skipped(config, config.contains("ignore") ? "ignore" : "exclude_modules");
  check_algorithm(config);
  if (const auto layers = config.find_object("quantized_layers")) {
    for (const std::string& name : layers->keys())
      if (const auto layer = layers->find_object({name})) check_algorithm(*layer);
  }
  return [=](const StoredLinear& linear) {
    if (skipped.contains(linear.spellings()) || linear.has("weight", kFloatTypes)) return linear.take_plain();
    if (linear.has("pre_quant_scale"))
      linear.fail_at("pre_quant_scale", "scales of inputs (AWQ) are not supported");
    if (!linear.has("weight", kU8Types)) return take_fp8(linear);
    WeightGroup group = take_e2m1(linear, "weight", kE4m3Types, kNvfp4Group);
    multiply_by_global(group, linear, "weight_scale_2", false);
    return group;
  };
}

}  // namespace quire
