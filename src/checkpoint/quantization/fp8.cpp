// 8-bit floating point: quant_method "fp8" of DeepSeek, Qwen and AutoFP8. Blocks are partial at the edges, as
// their writers have them.
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::string_view kFp8ScaleTypes[] = {"F32", "F16", "BF16", "F8_E8M0"};

}  // namespace

QuantizationMethod make_fp8(const ConfigObject& config) {
  const ModuleList skipped(config, "modules_to_not_convert");
  const std::string format = config.get_string("fmt", "e4m3");
  if (format != "e4m3") config.fail_at("fmt", format_text("must be e4m3, not {}", in_quotes(format)));
  const std::string scheme = config.get_string("activation_scheme", "dynamic");
  const bool is_static = scheme == "static";
  if (!is_static && scheme != "dynamic")
    config.fail_at("activation_scheme", format_text("must be static or dynamic, not {}", in_quotes(scheme)));
  const std::vector<int> sizes = config.get_ints("weight_block_size", {.max = 1 << 20});
  const bool in_blocks = !sizes.empty();
  if (in_blocks && sizes.size() != 2)
    config.fail_at("weight_block_size", "must be two numbers, of rows and columns");
  if (in_blocks && is_static) config.fail_at("activation_scheme", "must be dynamic beside weight_block_size");
  const MatrixShape block = in_blocks ? MatrixShape{sizes[0], sizes[1]} : kWholeMatrix;
  return [=](const StoredLinear& linear) {
    if (skipped.contains(linear.spellings()) || linear.has("weight", kFloatTypes)) return linear.take_plain();
    const bool is_inverse = in_blocks || linear.has("weight_scale_inv");
    WeightGroup group =
        take_e4m3(linear, is_inverse ? "weight_scale_inv" : "weight_scale", kFp8ScaleTypes, block);
    group.format.input = {.code = InputFormat::Code::kE4m3, .in_blocks = in_blocks};
    if (is_static)
      add_static_input(group, linear, linear.has("activation_scale") ? "activation_scale" : "input_scale");
    return group;
  };
}

WeightGroup take_e4m3(const StoredLinear& linear, std::string_view scale,
                      std::span<const std::string_view> scale_types, MatrixShape block) {
  const WeightTensorPtr codes = linear.take("weight", kE4m3Types, {linear.rows(), linear.cols()});
  const StoredScales scales = linear.take_scales(scale, scale_types, block);
  return linear.group_of({{WeightPart::kWeight, codes}, {WeightPart::kScale, scales.tensor}},
                         {.code = CodeType::kE4m3,
                          .bits = 8,
                          .block_rows = block.rows,
                          .block_cols = block.cols,
                          .scale = scales.type});
}

void add_static_input(WeightGroup& group, const StoredLinear& linear, std::string_view scale) {
  group.format.input = {.code = InputFormat::Code::kE4m3};
  group.tensors.push_back(
      {WeightPart::kInputScale, linear.take_scales(scale, kFloatTypes, kWholeMatrix).tensor});
}

}  // namespace quire
