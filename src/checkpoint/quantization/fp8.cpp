// 8-bit floating point: quant_method "fp8" of DeepSeek, Qwen and AutoFP8. Blocks are partial at the edges, as
// their writers have them.
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::string_view kFp8ScaleTypes[] = {"F32", "F16", "BF16", "F8_E8M0"};

class Fp8 final : public QuantizationMethod {
 public:
  explicit Fp8(const ConfigObject& config) : skipped_(config, "modules_to_not_convert") {
    const std::string format = config.get_string("fmt", "e4m3");
    if (format != "e4m3") config.fail_at("fmt", format_text("must be e4m3, not {}", in_quotes(format)));
    const std::string scheme = config.get_string("activation_scheme", "dynamic");
    is_static_ = scheme == "static";
    if (!is_static_ && scheme != "dynamic")
      config.fail_at("activation_scheme",
                     format_text("must be static or dynamic, not {}", in_quotes(scheme)));
    const std::vector<int> block = config.get_ints("weight_block_size", {.max = 1 << 20});
    if (block.empty()) return;
    if (block.size() != 2) config.fail_at("weight_block_size", "must be two numbers, of rows and columns");
    if (is_static_) config.fail_at("activation_scheme", "must be dynamic beside weight_block_size");
    block_ = {block[0], block[1]};
  }

  WeightGroup take(const StoredLinear& linear) const override {
    if (skipped_.contains(linear.spellings()) || linear.has("weight", kFloatTypes))
      return linear.take_plain();
    const bool in_blocks = block_.rows != LinearFormat::kWhole;
    const bool is_inverse = in_blocks || linear.has("weight_scale_inv");
    WeightGroup group =
        take_e4m3(linear, is_inverse ? "weight_scale_inv" : "weight_scale", kFp8ScaleTypes, block_);
    group.format.input = {.code = InputFormat::Code::kE4m3, .in_blocks = in_blocks};
    if (is_static_)
      add_static_input(group, linear, linear.has("activation_scale") ? "activation_scale" : "input_scale");
    return group;
  }

 private:
  ModuleList skipped_;
  bool is_static_ = false;
  MatrixShape block_ = kWholeMatrix;
};

}  // namespace

QuantizationPtr make_fp8(const ConfigObject& config) { return std::make_shared<Fp8>(config); }

WeightGroup take_e4m3(const StoredLinear& linear, std::string_view scale,
                      std::span<const std::string_view> scale_types, MatrixShape block) {
  const WeightTensorPtr codes = linear.take("weight", kE4m3Types, {linear.rows(), linear.cols()});
  const StoredScales scales = linear.take_scales(scale, scale_types, block);
  return {{{WeightPart::kWeight, codes}, {WeightPart::kScale, scales.tensor}},
          {.code = CodeType::kE4m3,
           .bits = 8,
           .block_rows = block.rows,
           .block_cols = block.cols,
           .scale = scales.type},
          linear.rows(),
          linear.cols()};
}

void add_static_input(WeightGroup& group, const StoredLinear& linear, std::string_view scale) {
  group.format.input = {.code = InputFormat::Code::kE4m3};
  group.tensors.push_back(
      {WeightPart::kInputScale, linear.take_scales(scale, kFloatTypes, kWholeMatrix).tensor});
}

}  // namespace quire
