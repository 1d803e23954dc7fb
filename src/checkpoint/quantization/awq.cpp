// AWQ as AutoAWQ's WQLinear_GEMM writes it (awq/utils/packing_utils.py): codes packed along the outputs,
// eight of 4 bits a word in an order of their own.
#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

// Output k of eight stands in bits [shift, shift + 4) of its word.
const Packing kAwqPacking = {.bits = 4, .shifts = {0, 16, 4, 20, 8, 24, 12, 28}, .along_rows = true};

WeightGroup take_awq(const StoredLinear& linear, std::int64_t group_size) {
  const std::int64_t rows = linear.rows(), cols = linear.cols();
  const std::int64_t num_words = kAwqPacking.num_words(rows);
  const std::int64_t num_groups = ceil_div(cols, group_size);
  const auto codes_of = [&](std::string_view suffix, std::int64_t count) {
    return unpacked(transpose(linear.take(suffix, kI32Types, {count, num_words})), kAwqPacking, rows, count);
  };
  if (rows % std::ssize(kAwqPacking.shifts) != 0)
    linear.fail_at("qweight", format_text("{} outputs do not fill words of eight codes", rows));
  WeightTensorPtr codes = codes_of("qweight", cols), zeros = codes_of("qzeros", num_groups);
  const StoredScales scales = linear.take_transposed_scales("scales", num_groups);
  return linear.group_of({{WeightPart::kWeight, std::move(codes)},
                          {WeightPart::kScale, scales.tensor},
                          {WeightPart::kOffset, std::move(zeros)}},
                         {.code = CodeType::kInt,
                          .bits = 4,
                          .block_cols = group_size,
                          .scale = scales.type,
                          .offset = OffsetType::kZero});
}

}  // namespace

QuantizationMethod make_awq(const ConfigObject& config) {
  const ModuleList skipped(config, "modules_to_not_convert");
  const std::string version = config.get_string("version", "gemm");
  if (version != "gemm" && version != "GEMM")
    config.fail_at("version", format_text("{} is not supported; gemm is", in_quotes(version)));
  const int bits = config.require_int({"bits", "w_bit"});
  if (bits != 4) config.fail_at("bits", format_text("must be 4, not {}", bits));
  if (!config.get_bool("zero_point", true)) config.fail_at("zero_point", "must be true");
  const int size = config.get_int({"group_size", "q_group_size"}, 128, {.min = -1, .max = 1 << 20});
  if (size == 0) config.fail_at("group_size", "must be a positive number, or -1 for whole rows");
  const std::int64_t group_size = size < 0 ? LinearFormat::kWhole : size;
  return [=](const StoredLinear& linear) {
    const bool is_plain = skipped.contains(linear.spellings()) || linear.has("weight", kFloatTypes);
    return is_plain ? linear.take_plain() : take_awq(linear, group_size);
  };
}

}  // namespace quire
