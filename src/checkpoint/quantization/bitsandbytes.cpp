// bitsandbytes (functional.py, QuantState; nn/modules.py): tables of 16 values with the largest magnitude of
// each 64 elements, which may be codes themselves; or int8 with the largest magnitude of each row.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/quantization/module_names.h"
#include "checkpoint/quantization/quantization_method.h"

namespace quire {
namespace {

constexpr std::size_t kMaxStateBytes = 4096;
constexpr std::int64_t kLeastBnbBlock = 16;  // columns
constexpr std::string_view kAbsmax = "weight.absmax";
constexpr std::string_view kStates[] = {"weight.quant_state.bitsandbytes__nf4",
                                        "weight.quant_state.bitsandbytes__fp4"};

// What PREFIX.weight.quant_state.* says.
struct QuantState {
  std::int64_t block_size = 64;
  std::int64_t nested_block_size = 0;  // 0: the magnitudes are floats
  float nested_offset = 0;
};

QuantState read_state(const StoredLinear& linear) {
  const bool is_nf4 = linear.has(kStates[0]);
  const std::string_view suffix = kStates[is_nf4 ? 0 : 1];
  const SafetensorsEntry* entry = linear.find(suffix);
  if (entry != nullptr && entry->bytes > kMaxStateBytes)
    linear.fail_at(suffix, format_text("{} bytes, more than the limit of {}", entry->bytes, kMaxStateBytes));
  const auto bytes = read_values<std::uint8_t>(
      *linear.take(suffix, kU8Types, {entry == nullptr ? 0 : static_cast<std::int64_t>(entry->bytes)}));
  const ConfigObject state(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                           "tensor " + linear.name_of(suffix));
  if (const std::string type = state.get_string("quant_type", ""); type != (is_nf4 ? "nf4" : "fp4"))
    state.fail_at("quant_type", format_text("must be {}, not {}", is_nf4 ? "nf4" : "fp4", in_quotes(type)));
  if (const std::vector<int> shape = state.get_ints("shape");
      shape.size() != 2 || shape[0] != linear.rows() || shape[1] != linear.cols())
    state.fail_at("shape", format_text("must be [{}, {}], not [{}]", linear.rows(), linear.cols(),
                                       join_text(shape, ", ")));
  QuantState result;
  result.block_size = state.require_int("blocksize", {.min = 2, .max = 1 << 16});
  if (linear.has("weight.nested_absmax")) {
    result.nested_block_size = state.require_int("nested_blocksize", {.min = 1, .max = 1 << 20});
    result.nested_offset = state.get_float("nested_offset", 0);
  }
  return result;
}

// The largest magnitudes of all blocks, as a column; to be read as f32.
WeightTensorPtr take_magnitudes(const StoredLinear& linear, const QuantState& state,
                                std::int64_t num_blocks) {
  const std::int64_t size = state.nested_block_size;
  if (size == 0) return linear.take(kAbsmax, kF32Types, {num_blocks}, {num_blocks, 1});
  const std::int64_t num_nested = ceil_div(num_blocks, size);
  const WeightTensorPtr codes = linear.take(kAbsmax, kU8Types, {num_blocks}, {num_blocks, 1});
  const WeightTensorPtr nested =
      linear.take("weight.nested_absmax", kF32Types, {num_nested}, {num_nested, 1});
  const auto table = read_values<float>(*linear.take("weight.nested_quant_map", kF32Types, {256}));
  const auto read = [=, offset = state.nested_offset](std::int64_t begin, const Tensor& dst) {
    const std::int64_t count = dst.dim(0), first = begin / size;
    const auto of_blocks = read_values<std::uint8_t>(*codes, begin, count);
    const auto scales = read_values<float>(*nested, first, ceil_div(begin + count, size) - first);
    auto* out = dst.data_as<float>();
    for (std::int64_t i = 0; i < count; ++i)
      out[i] = table[of_blocks[i]] * scales[(begin + i) / size - first] + offset;
  };
  return make_weight_tensor(codes->name(), DType::kF32, {num_blocks, 1}, read);
}

WeightGroup take_table(const StoredLinear& linear) {
  const QuantState state = read_state(linear);
  const std::int64_t rows = linear.rows(), cols = linear.cols(), size = state.block_size;
  // Blocks run on from row to row: where they do not end with it, a block's parts are blocks of their own.
  const std::int64_t block_cols = std::gcd(cols, size);
  if (cols % 2 != 0 || block_cols < std::min(cols, kLeastBnbBlock))
    linear.fail_at(kAbsmax,
                   format_text("{} columns in blocks of {} elements would be scaled in blocks of {}, "
                               "fewer than {}",
                               cols, size, block_cols, kLeastBnbBlock));
  const WeightTensorPtr bytes = linear.take("weight", kU8Types, {rows * cols / 2, 1}, {rows, cols / 2});
  const WeightTensorPtr magnitudes = take_magnitudes(linear, state, ceil_div(rows * cols, size));
  const auto table = read_values<float>(*linear.take("weight.quant_map", kF32Types, {16}));
  WeightTensorPtr scales = computed_scales(
      magnitudes->name(), rows, cols / block_cols, [=](std::int64_t row, std::int64_t count, float* out) {
        const std::int64_t first = row * cols / size;
        const auto values =
            read_values<float>(*magnitudes, first, ceil_div((row + count) * cols, size) - first);
        for (std::int64_t i = 0; i < count * cols / block_cols; ++i)
          out[i] = values[(row * cols + i * block_cols) / size - first];
      });
  WeightGroup group = linear.group_of(
      {{WeightPart::kWeight, unpacked(bytes, Packing::nibbles(true), rows, cols)},
       {WeightPart::kScale, std::move(scales)}},
      {.code = CodeType::kTable, .bits = 4, .block_cols = block_cols, .scale = ScaleType::kF32});
  if (!std::ranges::all_of(table, [](float value) { return std::isfinite(value); }))
    linear.fail_at("weight.quant_map", "a value is not finite");
  std::ranges::copy(table, group.format.table.begin());
  return group;
}

WeightGroup take_int8(const StoredLinear& linear) {
  constexpr float kLargestCode = 127;
  const std::int64_t rows = linear.rows(), cols = linear.cols();
  if (linear.has("weight_format")) {
    const auto layout = read_values<std::uint8_t>(*linear.take("weight_format", kU8Types, {}, {1, 1}));
    if (layout[0] != 0) linear.fail_at("weight_format", format_text("must be 0, row, not {}", layout[0]));
  }
  WeightTensorPtr codes =
      unpacked(linear.take("weight", kI8Types, {rows, cols}), Packing::bytes(128), rows, cols);
  const WeightTensorPtr magnitudes = linear.take("SCB", kF32Types, {rows}, {rows, 1});
  WeightTensorPtr scales =
      computed_scales(magnitudes->name(), rows, 1, [=](std::int64_t row, std::int64_t count, float* out) {
        const auto values = read_values<float>(*magnitudes, row, count);
        std::ranges::transform(values, out, [](float value) { return value / kLargestCode; });
      });
  return linear.group_of({{WeightPart::kWeight, std::move(codes)}, {WeightPart::kScale, std::move(scales)}},
                         {.code = CodeType::kInt,
                          .bits = 8,
                          .code_offset = 128,
                          .block_cols = LinearFormat::kWhole,
                          .scale = ScaleType::kF32});
}

}  // namespace

QuantizationMethod make_bitsandbytes(const ConfigObject& config) {
  return [skipped = ModuleList(config, "llm_int8_skip_modules")](const StoredLinear& linear) {
    if (skipped.contains(linear.spellings())) return linear.take_plain();
    if (linear.has(kAbsmax)) return take_table(linear);
    return linear.has("weight", kI8Types) ? take_int8(linear) : linear.take_plain();
  };
}

}  // namespace quire
