#include "ops/quantize.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

// As its authors' code has it (bitsandbytes).
constexpr std::array<float, 16> kNf4Table = {
    -1.0F,        -0.69619280F, -0.52507305F, -0.39491749F, -0.28444138F, -0.18477343F, -0.0910500363F, 0.0F,
    0.079580300F, 0.16093020F,  0.24611230F,  0.33791524F,  0.44070983F,  0.56261700F,  0.72295684F,    1.0F};

struct Recipe {
  std::string_view name;
  float largest;  // what a block's largest magnitude becomes
  LinearFormat format;
};

constexpr Recipe kRecipes[] = {  // by Quantization
    {"none", 1, {}},
    {"fp8",
     448,
     {.code = CodeType::kE4m3,
      .bits = 8,
      .block_cols = LinearFormat::kWhole,
      .scale = ScaleType::kF32,
      .input = {.code = InputFormat::Code::kE4m3}}},
    {"int8",
     127,
     {.code = CodeType::kInt,
      .bits = 8,
      .code_offset = 128,
      .block_cols = LinearFormat::kWhole,
      .scale = ScaleType::kF32,
      .input = {.code = InputFormat::Code::kI8}}},
    {"int4",
     7.5F,
     {.code = CodeType::kInt, .bits = 4, .code_offset = 8, .block_cols = 128, .scale = ScaleType::kF16}},
    {"nf4",
     1,
     {.code = CodeType::kTable, .bits = 4, .table = kNf4Table, .block_cols = 64, .scale = ScaleType::kF32}}};

// Of a value that is divided by its block's scale.
std::uint8_t code_of(const LinearFormat& format, float value) {
  if (format.code == CodeType::kE4m3) return to_e4m3(value);
  if (format.code == CodeType::kInt) {
    const auto offset = static_cast<float>(format.code_offset);
    return static_cast<std::uint8_t>(std::clamp(std::nearbyint(value) + offset, 0.0F, 2 * offset - 1));
  }
  const auto above = std::lower_bound(format.table.begin(), format.table.end(), value);
  if (above == format.table.begin()) return 0;
  if (above == format.table.end()) return 15;
  const auto nearest = value - above[-1] <= above[0] - value ? above - 1 : above;
  return static_cast<std::uint8_t>(nearest - format.table.begin());
}

// Of a block of the tensor of this name, as it is stored; of a block of zeros any.
float scale_of(const Recipe& recipe, std::span<const float> block, const std::string& name) {
  float largest = 0;
  for (const float value : block) {
    if (!std::isfinite(value))
      fail("tensor {} holds a value that is not finite; it cannot be quantised", name);
    largest = std::max(largest, std::fabs(value));
  }
  float scale = largest / recipe.largest;
  if (recipe.format.scale == ScaleType::kF16) {
    // Whoever reads the scales of a written checkpoint in either type has these.
    constexpr float kLeast = 0x1p-24F, kMost = 65280;
    const float rounded = to_float(from_float<BFloat16>(std::clamp(scale, kLeast, kMost)));
    scale = to_float(from_float<Float16>(rounded));
  }
  return scale > 0 ? scale : 1;
}

// The blocks' scales, or the codes, of a matrix in a float type. recipe: of kRecipes.
WeightTensorPtr quantized_tensor(const WeightTensorPtr& matrix, const Recipe& recipe, bool is_scale) {
  const std::int64_t cols = matrix->cols(), width = std::min(recipe.format.block_cols, cols);
  const auto read = [=, &recipe](std::int64_t row, const Tensor& dst) {
    std::vector<float> values(cols);
    for (std::int64_t i = 0; i < dst.dim(0); ++i) {
      matrix->read_rows(row + i, Tensor(values.data(), DType::kF32, {1, cols}));
      for (std::int64_t begin = 0; begin < cols; begin += width) {
        const auto block = std::span(values).subspan(begin, std::min(width, cols - begin));
        const float scale = scale_of(recipe, block, matrix->name());
        if (is_scale) {
          convert(DType::kF32, &scale, dst.dtype(), dst.rows(i, 1).columns(begin / width, 1).data(), 1);
        } else {
          std::uint8_t* codes = dst.rows(i, 1).data_as<std::uint8_t>() + begin;
          for (std::size_t k = 0; k < block.size(); ++k) codes[k] = code_of(recipe.format, block[k] / scale);
        }
      }
    }
  };
  return make_weight_tensor(matrix->name(), is_scale ? dtype_of(recipe.format.scale) : DType::kU8,
                            {matrix->rows(), is_scale ? (cols + width - 1) / width : cols}, read);
}

}  // namespace

Quantization parse_quantization(std::string_view name) {
  const auto found = std::ranges::find(kRecipes, name, &Recipe::name);
  if (found == std::end(kRecipes))
    fail("quantization {} is not known; use {}", in_quotes(name), kQuantizations);
  return static_cast<Quantization>(found - std::begin(kRecipes));
}

std::string_view to_string(Quantization quantization) {
  return kRecipes[static_cast<std::size_t>(quantization)].name;
}

WeightGroup quantized(WeightGroup group, Quantization quantization) {
  if (quantization == Quantization::kNone || !group.format.is_plain()) return group;
  const Recipe& recipe = kRecipes[static_cast<std::size_t>(quantization)];
  const WeightTensorPtr matrix = group.tensors.front().tensor;
  return {{{WeightPart::kWeight, quantized_tensor(matrix, recipe, false)},
           {WeightPart::kScale, quantized_tensor(matrix, recipe, true)}},
          recipe.format,
          group.rows,
          group.cols};
}

}  // namespace quire
