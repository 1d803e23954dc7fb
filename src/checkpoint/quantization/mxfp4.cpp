// The experts of gpt-oss: 4-bit floating point with a power of two for each 32 columns ("OCP Microscaling
// Formats Specification", 2023). A layer's experts are one tensor, with rows of gate and up by turns. What is
// not an expert is plain.
#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/parse_number.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::int64_t kMxfp4BlockBytes = kMxGroup / 2;

// "PARENT.3.gate_proj": the expert 3 of PARENT.
struct ExpertName {
  std::string_view parent, projection;
  std::int64_t index = -1;  // below 0: it is no expert
};

ExpertName parse_expert(std::string_view prefix) {
  const std::size_t last = prefix.rfind('.');
  const std::size_t number = last == prefix.npos || last == 0 ? prefix.npos : prefix.rfind('.', last - 1);
  if (number == prefix.npos || !prefix.substr(0, number).ends_with(".experts")) return {};
  const auto index = parse_number<std::int64_t>(prefix.substr(number + 1, last - number - 1));
  return {prefix.substr(0, number), prefix.substr(last + 1), index.value_or(-1)};
}

// Of bytes of two codes each, the first in the lower half.
WeightGroup e2m1_group(const WeightTensorPtr& bytes, const StoredScales& scales, std::int64_t rows,
                       std::int64_t cols, std::int64_t block_cols) {
  return {{{WeightPart::kWeight, unpacked(bytes, Packing::nibbles(false), rows, cols)},
           {WeightPart::kScale, scales.tensor}},
          {.code = CodeType::kTable,
           .bits = 4,
           .table = kE2m1Table,
           .block_cols = block_cols,
           .scale = scales.type},
          rows,
          cols};
}

// The experts of a layer, one below the other.
WeightGroup take_experts(const StoredLinear& linear, const std::string& name, std::int64_t index,
                         std::int64_t rows) {
  const std::string blocks_name = name + "_blocks", scales_name = name + "_scales";
  const std::int64_t num_blocks = ceil_div(linear.cols(), kMxGroup);
  const SafetensorsEntry* entry = linear.file().find_entry(blocks_name);
  const std::int64_t num_experts = entry == nullptr || entry->shape.empty() ? 1 : entry->shape[0];
  if (entry != nullptr && index >= num_experts)
    fail("tensor {}: it has {} experts, and expert {} is asked for", in_quotes(blocks_name), num_experts,
         index);
  if (linear.cols() % kMxGroup != 0)
    fail("tensor {}: {} columns are no whole blocks of {}", in_quotes(blocks_name), linear.cols(), kMxGroup);
  const std::int64_t all_rows = num_experts * rows;
  const WeightTensorPtr bytes =
      linear.file().take_stored(blocks_name, kU8Types, {num_experts, rows, num_blocks, kMxfp4BlockBytes},
                                {all_rows, num_blocks * kMxfp4BlockBytes});
  const StoredScales scales =
      checked_scales(linear.file().take_stored(scales_name, kE8m0Types, {num_experts, rows, num_blocks},
                                               {all_rows, num_blocks}),
                     "U8");
  return e2m1_group(bytes, scales, all_rows, linear.cols(), kMxGroup);
}

}  // namespace

QuantizationMethod make_mxfp4(const ConfigObject& config) {
  return [skipped = ModuleList(config, "modules_to_not_convert")](const StoredLinear& linear) {
    const ExpertName name = parse_expert(linear.prefix());
    if (name.index < 0 || skipped.contains(linear.spellings())) return linear.take_plain();
    const bool is_half = name.projection == "gate_proj" || name.projection == "up_proj";
    const std::string tensor =
        std::string(name.parent) + (is_half ? ".gate_up_proj" : "." + std::string(name.projection));
    const std::int64_t rows = is_half ? 2 * linear.rows() : linear.rows();
    const WeightGroup expert =
        slice_rows(take_experts(linear, tensor, name.index, rows), name.index * rows, rows);
    if (!is_half) return expert;
    return pick_rows(expert, by_turns(linear.rows(), 2, name.projection == "gate_proj" ? 0 : 1));
  };
}

WeightGroup take_e2m1(const StoredLinear& linear, std::string_view codes,
                      std::span<const std::string_view> scale_types, std::int64_t block_cols) {
  if (linear.cols() % 2 != 0)
    linear.fail_at(codes, format_text("{} columns do not fill bytes of two codes", linear.cols()));
  const WeightTensorPtr bytes = linear.take(codes, kU8Types, {linear.rows(), linear.cols() / 2});
  const StoredScales scales = linear.take_scales("weight_scale", scale_types, {1, block_cols});
  return e2m1_group(bytes, scales, linear.rows(), linear.cols(), block_cols);
}

void multiply_by_global(WeightGroup& group, const StoredLinear& linear, std::string_view scale,
                        bool is_divisor) {
  const WeightTensorPtr scalar = linear.take_scales(scale, kF32Types, kWholeMatrix).tensor;
  const auto compute = [=](std::int64_t, std::int64_t count, float* out) {
    const float value = read_values<float>(*scalar).front();
    if (value == 0) fail("tensor {}: the scale of the whole matrix is zero", in_quotes(scalar->name()));
    std::fill_n(out, count, is_divisor ? 1 / value : value);
  };
  group.format.super_cols = LinearFormat::kWhole;
  group.tensors.push_back(
      {WeightPart::kSuperScale, computed_scales(scalar->name(), linear.rows(), 1, compute)});
}

}  // namespace quire
