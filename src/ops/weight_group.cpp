#include "ops/weight_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::int64_t kLeastBlockCols = 16;

std::int64_t num_blocks_of(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

// Rows and columns of the matrix that one element of a part stands for.
MatrixShape block_of(const LinearFormat& format, WeightPart part) {
  if (part == WeightPart::kScale || part == WeightPart::kOffset)
    return {format.block_rows, format.block_cols};
  if (part == WeightPart::kSuperScale || part == WeightPart::kSuperMinimum)
    return {format.block_rows, format.super_cols};
  return {1, 1};
}

// Changes every tensor that stands for elements of the matrix by change(tensor, what an element of it stands
// for).
template <typename Change>
WeightGroup changed(WeightGroup group, const Change& change) {
  for (auto& [part, tensor] : group.tensors)
    if (part != WeightPart::kOrder && part != WeightPart::kInputScale)
      tensor = change(std::move(tensor), block_of(group.format, part));
  return group;
}

std::vector<std::int64_t> blocks_of_smaller(std::int64_t n, std::int64_t smaller, std::int64_t block) {
  std::vector<std::int64_t> blocks(num_blocks_of(n, smaller));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int64_t>(i) * smaller / block;
  return blocks;
}

// The block (0: none) where it need not be cut at the places, or the largest into which it can be divided.
std::int64_t uncut(std::int64_t block, std::initializer_list<std::int64_t> places, std::int64_t n) {
  for (const std::int64_t place : places)
    if (block != 0 && block != LinearFormat::kWhole && place != n) block = std::gcd(block, place);
  return block;
}

// Most rows, or columns, of which `rows` are whole blocks.
std::int64_t run_of(const std::vector<std::int64_t>& rows) {
  std::int64_t run = std::ssize(rows);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i] != rows[i - 1] + 1)
      run = std::gcd(std::gcd(run, rows[i]), static_cast<std::int64_t>(i));
  }
  return run;
}

// Makes blocks of fewer rows, of which each has its block's scale.
WeightGroup with_block_rows(WeightGroup group, std::int64_t block_rows) {
  if (block_rows == group.format.block_rows) return group;
  group = changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    return block.rows == 1
               ? tensor
               : pick_rows(std::move(tensor), blocks_of_smaller(group.rows, block_rows, block.rows));
  });
  group.format.block_rows = block_rows;
  return group;
}

WeightGroup with_block_cols(WeightGroup group, std::int64_t block_cols, std::int64_t super_cols) {
  if (block_cols < kLeastBlockCols && block_cols != group.format.block_cols)
    fail("tensor {}: its columns are scaled in blocks of {}, which cannot be cut into blocks of {}",
         group.name(), group.format.block_cols, block_cols);
  group = changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    if (block.cols == 1) return tensor;
    const std::int64_t smaller = block.cols == group.format.super_cols ? super_cols : block_cols;
    return smaller == block.cols
               ? tensor
               : pick_cols(std::move(tensor), blocks_of_smaller(group.cols, smaller, block.cols));
  });
  group.format.block_cols = block_cols;
  group.format.super_cols = super_cols;
  return group;
}

// Rows in f32, computed of their codes.
void read_decoded(const QuantizedRows& matrix, const std::array<float, 256>& values_of, std::int64_t row,
                  const Tensor& dst) {
  const auto num_blocks = static_cast<std::size_t>(matrix.num_blocks());
  const auto num_cols = static_cast<std::size_t>(matrix.cols);
  std::vector<std::uint8_t> codes(num_cols);
  std::vector<float> scales(num_blocks), minima(num_blocks), values(num_cols);
  for (std::int64_t i = 0; i < dst.dim(0); ++i) {
    matrix.codes->read_rows(row + i, Tensor(codes.data(), DType::kU8, {1, matrix.cols}));
    read_block_scales(matrix, row + i, 1, scales.data(), minima.data());
    for (std::size_t col = 0; col < num_cols; ++col) {
      const std::size_t block = col / static_cast<std::size_t>(matrix.format.block_cols);
      const std::size_t to = matrix.order.empty() ? col : static_cast<std::size_t>(matrix.order[col]);
      values[to] = scales[block] * values_of[codes[col]] - minima[block];
    }
    convert(DType::kF32, values.data(), dst.dtype(), dst.rows(i, 1).data(), num_cols);
  }
}

}  // namespace

WeightGroup WeightGroup::plain(WeightTensorPtr tensor) {
  const std::int64_t rows = tensor->rows(), cols = tensor->cols();
  return {{{WeightPart::kWeight, std::move(tensor)}}, {}, rows, cols};
}

WeightTensorPtr WeightGroup::find(WeightPart part) const {
  const auto found = std::ranges::find(tensors, part, &WeightGroupTensor::part);
  return found == tensors.end() ? nullptr : found->tensor;
}

MatrixShape shape_of(std::span<const WeightGroup> parts) {
  QUIRE_CHECK(!parts.empty());
  MatrixShape shape{0, parts.front().cols};
  for (const WeightGroup& part : parts) {
    QUIRE_CHECK(part.cols == shape.cols, "{} has {} columns, not {}", part.name(), part.cols, shape.cols);
    shape.rows += part.rows;
  }
  return shape;
}

std::vector<std::int32_t> column_order(const WeightGroup& group) {
  if (!group.format.is_ordered) return {};
  return read_values<std::int32_t>(*group.find(WeightPart::kOrder));
}

WeightGroup settle_input(WeightGroup group, bool weight_only) {
  const WeightTensorPtr scale = group.find(WeightPart::kInputScale);
  std::erase_if(group.tensors, [](const auto& tensor) { return tensor.part == WeightPart::kInputScale; });
  if (weight_only) group.format.input = {};
  if (weight_only || scale == nullptr) return group;
  const float value = read_values<float>(*scale).front();
  if (value <= 0) fail("tensor {}: a scale must be positive, not {}", in_quotes(scale->name()), value);
  group.format.input.scale = value;
  return group;
}

void check_input_columns(const LinearFormat& format, std::int64_t cols, std::string_view name) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) / (127 * 128);
  if (format.input.code == InputFormat::Code::kI8 && cols >= kMost)
    fail("tensor {}: {} columns, of which a product in int8 takes fewer than {}; --weight-only takes more",
         name, cols, kMost);
}

std::size_t num_alike(std::span<const WeightGroup> parts) {
  // Rows may be scaled in blocks of any height: each gets its own scale.
  const auto format_of = [](const WeightGroup& group) {
    LinearFormat format = group.format;
    format.block_rows = 1;
    return format;
  };
  const std::vector<std::int32_t> order = column_order(parts.front());
  const auto differs = [&](const WeightGroup& group) {
    return format_of(group) != format_of(parts.front()) || column_order(group) != order;
  };
  return static_cast<std::size_t>(std::find_if(parts.begin() + 1, parts.end(), differs) - parts.begin());
}

WeightTensorPtr plain_rows(std::span<const WeightGroup> parts) {
  shape_of(parts);
  std::vector<WeightTensorPtr> tensors;
  for (const WeightGroup& part : parts) {
    QUIRE_CHECK(part.format.is_plain(), "{} is not plain", part.name());
    tensors.push_back(part.tensors.front().tensor);
  }
  return stack_rows(std::move(tensors));
}

QuantizedRows quantized_rows(std::span<const WeightGroup> parts) {
  QUIRE_CHECK(num_alike(parts) == parts.size() && !parts.front().format.is_plain(), "{} and others",
              parts.front().name());
  const MatrixShape shape = shape_of(parts);
  std::vector<WeightGroup> rows;
  for (const WeightGroup& part : parts) rows.push_back(with_block_rows(part, 1));
  const auto stacked = [&](WeightPart part) -> WeightTensorPtr {
    std::vector<WeightTensorPtr> tensors;
    for (const WeightGroup& group : rows)
      if (WeightTensorPtr tensor = group.find(part)) tensors.push_back(std::move(tensor));
    return tensors.empty() ? nullptr : stack_rows(std::move(tensors));
  };
  QuantizedRows matrix = {.format = rows.front().format,
                          .rows = shape.rows,
                          .cols = shape.cols,
                          .codes = stacked(WeightPart::kWeight),
                          .scales = stacked(WeightPart::kScale),
                          .offsets = stacked(WeightPart::kOffset),
                          .super_scales = stacked(WeightPart::kSuperScale),
                          .super_minima = stacked(WeightPart::kSuperMinimum),
                          .order = column_order(parts.front())};
  matrix.format.block_cols = std::min(matrix.format.block_cols, shape.cols);
  matrix.format.super_cols = std::min(matrix.format.super_cols, shape.cols);
  return matrix;
}

void read_block_scales(const QuantizedRows& matrix, std::int64_t row, std::int64_t count, float* scales,
                       float* minima) {
  const LinearFormat& format = matrix.format;
  const std::int64_t num_blocks = matrix.num_blocks();
  std::vector<std::byte> stored(static_cast<std::size_t>(count * num_blocks) * sizeof(float));
  const auto read = [&](const WeightTensor& tensor, ScaleType type, float* out) {
    tensor.read_rows(row, Tensor(stored.data(), dtype_of(type), {count, num_blocks}));
    read_scales(type, stored.data(), count * num_blocks, out);
  };
  std::vector<float> supers(count * matrix.num_supers());
  const auto times_supers = [&](const WeightTensorPtr& tensor, float* out) {
    if (tensor == nullptr) return;
    const std::int64_t num_supers = matrix.num_supers();
    tensor->read_rows(row, Tensor(supers.data(), DType::kF32, {count, num_supers}));
    for (std::int64_t i = 0; i < count * num_blocks; ++i)
      out[i] *= supers[i / num_blocks * num_supers + i % num_blocks * format.block_cols / format.super_cols];
  };
  read(*matrix.scales, format.scale, scales);
  times_supers(matrix.super_scales, scales);
  if (minima == nullptr) return;
  if (format.offset == OffsetType::kNone) {
    std::fill_n(minima, count * num_blocks, 0.0F);
  } else if (format.offset == OffsetType::kZero) {
    read(*matrix.offsets, ScaleType::kU8, minima);
    for (std::int64_t i = 0; i < count * num_blocks; ++i) minima[i] *= scales[i];
  } else {
    read(*matrix.offsets, format.minimum, minima);
    times_supers(matrix.super_minima, minima);
  }
}

WeightTensorPtr dequantized(WeightGroup group) {
  if (group.format.is_plain()) return group.tensors.front().tensor;
  const QuantizedRows matrix = quantized_rows({&group, 1});
  return make_weight_tensor(group.name(), DType::kF32, {matrix.rows, matrix.cols},
                            [=, values = code_values(matrix.format)](std::int64_t row, const Tensor& dst) {
                              read_decoded(matrix, values, row, dst);
                            });
}

WeightGroup slice_rows(WeightGroup group, std::int64_t begin, std::int64_t count) {
  const std::int64_t block_rows = uncut(group.format.block_rows, {begin, begin + count}, group.rows);
  group = with_block_rows(std::move(group), block_rows);
  group.rows = count;
  return changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    return slice_rows(std::move(tensor), begin / block.rows, num_blocks_of(count, block.rows));
  });
}

WeightGroup slice_cols(WeightGroup group, std::int64_t begin, std::int64_t count) {
  if (begin == 0 && count == group.cols) return group;
  if (group.format.is_ordered)
    fail("tensor {}: its columns stand in an order of their own (desc_act), which cannot be cut among ranks",
         group.name());
  const auto cut = [&](std::int64_t block) { return uncut(block, {begin, begin + count}, group.cols); };
  group = with_block_cols(std::move(group), cut(group.format.block_cols), cut(group.format.super_cols));
  group.cols = count;
  return changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    return slice_cols(std::move(tensor), begin / block.cols, num_blocks_of(count, block.cols));
  });
}

WeightGroup transpose(WeightGroup group) {
  if (!group.format.is_plain())
    fail("tensor {}: it is quantised and stands transposed, which is not supported", group.name());
  return WeightGroup::plain(transpose(std::move(group.tensors.front().tensor)));
}

WeightGroup pick_rows(WeightGroup group, const std::vector<std::int64_t>& rows) {
  group = with_block_rows(std::move(group), uncut(group.format.block_rows, {run_of(rows)}, group.rows));
  group.rows = std::ssize(rows);
  return changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    if (block.rows == LinearFormat::kWhole) return tensor;
    std::vector<std::int64_t> blocks;
    for (std::int64_t i = 0; i < group.rows; i += block.rows) blocks.push_back(rows[i] / block.rows);
    return pick_rows(std::move(tensor), std::move(blocks));
  });
}

WeightGroup pick_cols(WeightGroup group, const std::vector<std::int64_t>& cols) {
  QUIRE_CHECK(!group.format.is_ordered, "{}", group.name());
  const auto cut = [&](std::int64_t block) { return uncut(block, {run_of(cols)}, group.cols); };
  group = with_block_cols(std::move(group), cut(group.format.block_cols), cut(group.format.super_cols));
  group.cols = std::ssize(cols);
  return changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    if (block.cols == LinearFormat::kWhole) return tensor;
    std::vector<std::int64_t> blocks;
    for (std::int64_t i = 0; i < group.cols; i += block.cols) blocks.push_back(cols[i] / block.cols);
    return pick_cols(std::move(tensor), std::move(blocks));
  });
}

WeightGroup pad_rows(WeightGroup group, std::int64_t rows) {
  group.rows = rows;
  return changed(std::move(group), [&](WeightTensorPtr tensor, MatrixShape block) {
    return pad_rows(std::move(tensor), num_blocks_of(rows, block.rows));
  });
}

}  // namespace quire
