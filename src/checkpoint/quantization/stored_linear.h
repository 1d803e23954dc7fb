#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "ops/weight_group.h"

namespace quire {

// Types of a checkpoint's tensors, as files write them.
inline constexpr std::string_view kF32Types[] = {"F32"};
inline constexpr std::string_view kE4m3Types[] = {"F8_E4M3"};
inline constexpr std::string_view kE8m0Types[] = {"F8_E8M0", "U8"};
inline constexpr std::string_view kI32Types[] = {"I32"};
inline constexpr std::string_view kI64Types[] = {"I64"};
inline constexpr std::string_view kI8Types[] = {"I8"};
inline constexpr std::string_view kU8Types[] = {"U8"};

// Blocks of which a matrix has one.
inline constexpr MatrixShape kWholeMatrix = {LinearFormat::kWhole, LinearFormat::kWhole};

// Scales of one element a block, [blocks of rows, blocks of columns].
struct StoredScales {
  WeightTensorPtr tensor;
  ScaleType type = ScaleType::kNone;
};

// The matrix [rows, cols] of a linear layer that is asked for, and the tensors PREFIX.SUFFIX that a quantised
// checkpoint has of it. Errors name the tensor.
class StoredLinear {
 public:
  StoredLinear(Checkpoint& file, std::string_view prefix, std::int64_t rows, std::int64_t cols);

  const std::string& prefix() const { return spellings_.front(); }
  // The names that a configuration may call the module by: with and without an outer "model.".
  std::span<const std::string> spellings() const { return spellings_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  std::string name_of(std::string_view suffix) const { return prefix() + "." + std::string(suffix); }

  bool has(std::string_view suffix) const { return find(suffix) != nullptr; }
  bool has(std::string_view suffix, std::span<const std::string_view> dtypes) const;
  const SafetensorsEntry* find(std::string_view suffix) const { return file_.find_entry(name_of(suffix)); }

  Checkpoint& file() const { return file_; }
  WeightGroup group_of(std::vector<WeightGroupTensor> tensors, const LinearFormat& format) const {
    return {std::move(tensors), format, rows_, cols_};
  }
  // PREFIX.weight in a float type.
  WeightGroup take_plain() const { return file_.take_linear(prefix(), rows_, cols_); }
  // As Checkpoint::take_stored; without a view the tensor is shown as it is.
  WeightTensorPtr take(std::string_view suffix, std::span<const std::string_view> dtypes,
                       const std::vector<std::int64_t>& shape, std::vector<std::int64_t> view = {}) const;
  // Scales of blocks of block.rows × block.cols, stored as a matrix of them or in a shape that differs from
  // it in dimensions of 1 alone: a scalar, a vector.
  StoredScales take_scales(std::string_view suffix, std::span<const std::string_view> dtypes,
                           MatrixShape block) const;
  // One for each row and group of columns, stored as [groups, rows] in a float type.
  StoredScales take_transposed_scales(std::string_view suffix, std::int64_t num_groups) const;

  [[noreturn]] void fail_at(std::string_view suffix, std::string_view problem) const;

 private:
  Checkpoint& file_;
  std::vector<std::string> spellings_;
  std::int64_t rows_, cols_;
};

inline std::int64_t ceil_div(std::int64_t n, std::int64_t block) { return (n + block - 1) / block; }

// A tensor of scales under the type that it has in a WeightGroup: bf16 is shown as f32. Error where one that
// is read is not finite. dtype: as the file writes it; U8 is E8M0.
StoredScales checked_scales(WeightTensorPtr stored, std::string_view dtype);
// f32 [rows, cols] that compute(row, count, out) makes; Error as above, under this name.
WeightTensorPtr computed_scales(std::string name, std::int64_t rows, std::int64_t cols,
                                std::function<void(std::int64_t, std::int64_t, float*)> compute);

// How words of one or four bytes hold codes.
struct Packing {
  int bits = 4;
  // Of the first code of a word, the second, and so on: where its bits begin.
  std::vector<std::uint8_t> shifts;
  bool along_rows = false;  // a word's codes are of as many rows, and not columns
  std::uint32_t added = 0;  // to each word, before it is taken apart

  static Packing words(int bits, bool along_rows = false);  // of four bytes, the lowest bits first
  // A code each.
  static Packing bytes(int added) {
    return {.bits = 8, .shifts = {0}, .added = static_cast<std::uint32_t>(added)};
  }
  static Packing nibbles(bool high_first);
  std::int64_t num_words(std::int64_t codes) const { return ceil_div(codes, std::ssize(shifts)); }
};
// The codes, u8 [rows, cols], of words [rows, num_words(cols)], or [num_words(rows), cols] along rows. Reads
// some words at a time.
WeightTensorPtr unpacked(const WeightTensorPtr& words, const Packing& packing, std::int64_t rows,
                         std::int64_t cols);

// The columns of codes in the order of their groups, and that order, by what `suffix` says of each column:
// its group, each of group_size columns. Nothing changes where they stand in that order.
void order_columns(WeightGroup& group, const StoredLinear& linear, std::string_view suffix);

}  // namespace quire
