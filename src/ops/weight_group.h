#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/linear_format.h"
#include "ops/weight_tensor.h"

namespace quire {

// What a tensor of a group is, with its shape; ceil(rows / block_rows) is written as blocks of rows.
enum class WeightPart : std::uint8_t {
  kWeight,        // [rows, cols], of a float type; or codes, one in each u8
  kScale,         // [blocks of rows, blocks of columns], of dtype_of(format.scale)
  kOffset,        // the same, u8: zero points; or minima, of dtype_of(format.minimum)
  kSuperScale,    // f32 [blocks of rows, super-blocks of columns]
  kSuperMinimum,  // the same
  kOrder,         // i32 [cols]
  kInputScale,    // [1, 1], by which inputs are rounded, until settle_input reads it
};

struct WeightGroupTensor {
  WeightPart part = WeightPart::kWeight;
  WeightTensorPtr tensor;
};

// What a checkpoint has of a linear layer's matrix [rows, cols].
struct WeightGroup {
  std::vector<WeightGroupTensor> tensors;  // kWeight is the first
  LinearFormat format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;

  static WeightGroup plain(WeightTensorPtr tensor);
  WeightTensorPtr find(WeightPart part) const;  // null: it has none
  const std::string& name() const { return tensors.front().tensor->name(); }
};

// The matrix of the groups' rows, one below the other.
struct MatrixShape {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};
MatrixShape shape_of(std::span<const WeightGroup> parts);

// The order of a group's columns, [cols] (LinearFormat::is_ordered); or none.
std::vector<std::int32_t> column_order(const WeightGroup& group);

// The group with what its products do with their input: nothing, where weight_only; else what its format
// says, by the scale of the file where it has one. Error that names that where it is not positive and finite.
WeightGroup settle_input(WeightGroup group, bool weight_only);

// Error that names the matrix where its products of int8 could have a sum of more than 32 bits.
void check_input_columns(const LinearFormat& format, std::int64_t cols, std::string_view name);

// How many of the groups, from the first on, can be one matrix: they are of one format and one order of
// columns.
std::size_t num_alike(std::span<const WeightGroup> parts);

// The same as a tensor, for who knows the plain format alone.
WeightTensorPtr plain_rows(std::span<const WeightGroup> parts);

// The rows of groups that are alike, one below the other, each with scales of its own: block_rows is 1, and
// block_cols and super_cols are at most cols.
struct QuantizedRows {
  LinearFormat format;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  // As WeightPart has them; null where the format has none.
  WeightTensorPtr codes, scales, offsets, super_scales, super_minima;
  std::vector<std::int32_t> order;  // [cols], or none

  std::int64_t num_blocks() const { return (cols + format.block_cols - 1) / format.block_cols; }
  std::int64_t num_supers() const {
    return format.super_cols == 0 ? 0 : (cols + format.super_cols - 1) / format.super_cols;
  }
};
QuantizedRows quantized_rows(std::span<const WeightGroup> parts);

// Scales and minima of rows [row, row + count), f32 [count, num_blocks()] each: with super-blocks and zero
// points worked in, so that W = scale * value(code) - minimum. minima may be null where the format has none.
void read_block_scales(const QuantizedRows& matrix, std::int64_t row, std::int64_t count, float* scales,
                       float* minima);

// The matrix as values, which are computed as they are read: f32, columns in W's order.
WeightTensorPtr dequantized(WeightGroup group);

// All tensors of a group at once. Where a cut goes through blocks that share a scale they become smaller
// ones; Error that names the tensor where they would be narrower than 16 columns, or where the columns stand
// in an order of their own.
WeightGroup slice_rows(WeightGroup group, std::int64_t begin, std::int64_t count);
WeightGroup slice_cols(WeightGroup group, std::int64_t begin, std::int64_t count);
WeightGroup pick_rows(WeightGroup group, const std::vector<std::int64_t>& rows);
WeightGroup pick_cols(WeightGroup group, const std::vector<std::int64_t>& cols);
WeightGroup pad_rows(WeightGroup group, std::int64_t rows);
WeightGroup transpose(WeightGroup group);  // Error where it is not plain

}  // namespace quire
