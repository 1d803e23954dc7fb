#include "checkpoint/quantization/stored_linear.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::string_view kOuterModel = "model.";

std::int64_t blocks_in(std::int64_t n, std::int64_t block) {
  return block == LinearFormat::kWhole ? 1 : ceil_div(n, block);
}

// Error where one of the values that were read from row `row` of a tensor on is not finite.
template <typename T, typename IsFinite>
void check_finite(const std::string& name, std::int64_t row, const Tensor& read, const IsFinite& is_finite) {
  const std::span values(read.data_as<const T>(), static_cast<std::size_t>(read.numel()));
  const auto found = std::ranges::find_if_not(values, is_finite);
  if (found != values.end())
    fail("tensor {}: a scale of row {} is not finite", in_quotes(name),
         row + (found - values.begin()) / read.dim(1));
}

void check_scales(const std::string& name, ScaleType type, std::int64_t row, const Tensor& read) {
  if (is_float(read.dtype())) {
    dispatch_float(read.dtype(), [&]<typename T>() {
      check_finite<T>(name, row, read, [](T value) { return std::isfinite(to_float(value)); });
    });
  } else {
    const unsigned nan = type == ScaleType::kE4m3 ? 0x7FU : 0xFFU;  // of E4M3 with either sign
    check_finite<std::uint8_t>(name, row, read, [=](std::uint8_t code) { return (code & nan) != nan; });
  }
}

// One code of each word, whose bits begin at `shift`.
template <typename Word>
void take_one(const Packing& packing, const Word* words, int shift, std::int64_t num_cols,
              std::uint8_t* out) {
  const std::uint32_t mask = (1U << packing.bits) - 1, added = packing.added;
  for (std::int64_t col = 0; col < num_cols; ++col)
    out[col] = static_cast<std::uint8_t>((words[col] + added) >> shift & mask);
}

// All codes of each word, as many as kPerWord.
template <std::int64_t kPerWord, typename Word>
void take_all(const Packing& packing, const Word* words, std::int64_t num_cols, std::uint8_t* out) {
  const std::uint32_t mask = (1U << packing.bits) - 1, added = packing.added;
  std::array<std::uint8_t, kPerWord> shifts;
  std::copy_n(packing.shifts.begin(), kPerWord, shifts.begin());
  const std::int64_t num_whole = num_cols / kPerWord;
  for (std::int64_t i = 0; i < num_whole; ++i, out += kPerWord) {
    for (std::size_t k = 0; k < kPerWord; ++k)
      out[k] = static_cast<std::uint8_t>((words[i] + added) >> shifts[k] & mask);
  }
  for (std::size_t k = 0; k < static_cast<std::size_t>(num_cols % kPerWord); ++k)
    out[k] = static_cast<std::uint8_t>((words[num_whole] + added) >> shifts[k] & mask);
}

template <typename Word>
void take_apart(const Packing& packing, const Word* words, std::int64_t num_cols, std::uint8_t* out) {
  switch (packing.shifts.size()) {
    case 2:
      return take_all<2>(packing, words, num_cols, out);
    case 4:
      return take_all<4>(packing, words, num_cols, out);
    case 8:
      return take_all<8>(packing, words, num_cols, out);
    case 16:
      return take_all<16>(packing, words, num_cols, out);
    default:
      return take_one(packing, words, packing.shifts.front(), num_cols, out);
  }
}

// Some rows of words at a time.
template <typename Word>
void read_unpacked(const WeightTensor& packed, const Packing& packing, std::int64_t row, const Tensor& dst) {
  constexpr std::int64_t kScratchWords = 1 << 14;
  const std::int64_t per_word = packing.along_rows ? std::ssize(packing.shifts) : 1;
  const std::int64_t width = packed.cols(), cols = dst.dim(1), end = row + dst.dim(0);
  const std::int64_t step = std::max<std::int64_t>(1, kScratchWords / std::max<std::int64_t>(1, width));
  std::vector<Word> words(std::min(step, packed.rows()) * width);
  auto* out = dst.data_as<std::uint8_t>();
  for (std::int64_t first = row / per_word; first * per_word < end; first += step) {
    const std::int64_t count = std::min(step, ceil_div(end, per_word) - first);
    packed.read_rows(first, Tensor(words.data(), packed.dtype(), {count, width}));
    for (; row < std::min(end, (first + count) * per_word); ++row, out += cols) {
      const Word* of_row = &words[(row / per_word - first) * width];
      if (packing.along_rows) {
        take_one(packing, of_row, packing.shifts[row % per_word], cols, out);
      } else {
        take_apart(packing, of_row, cols, out);
      }
    }
  }
}

}  // namespace

StoredLinear::StoredLinear(Checkpoint& file, std::string_view prefix, std::int64_t rows, std::int64_t cols)
    : file_(file), rows_(rows), cols_(cols) {
  spellings_.emplace_back(prefix);
  spellings_.push_back(prefix.starts_with(kOuterModel) ? std::string(prefix.substr(kOuterModel.size()))
                                                       : std::string(kOuterModel) + std::string(prefix));
}

bool StoredLinear::has(std::string_view suffix, std::span<const std::string_view> dtypes) const {
  const SafetensorsEntry* entry = find(suffix);
  return entry != nullptr && std::ranges::find(dtypes, entry->dtype_name) != dtypes.end();
}

WeightTensorPtr StoredLinear::take(std::string_view suffix, std::span<const std::string_view> dtypes,
                                   const std::vector<std::int64_t>& shape,
                                   std::vector<std::int64_t> view) const {
  return file_.take_stored(name_of(suffix), dtypes, shape, view.empty() ? shape : std::move(view));
}

StoredScales StoredLinear::take_scales(std::string_view suffix, std::span<const std::string_view> dtypes,
                                       MatrixShape block) const {
  const std::vector<std::int64_t> matrix = {blocks_in(rows_, block.rows), blocks_in(cols_, block.cols)};
  const SafetensorsEntry* entry = find(suffix);
  const bool is_same = entry != nullptr && without_ones(entry->shape) == without_ones(matrix);
  WeightTensorPtr stored = take(suffix, dtypes, is_same ? entry->shape : matrix, matrix);
  return checked_scales(std::move(stored), entry->dtype_name);
}

StoredScales StoredLinear::take_transposed_scales(std::string_view suffix, std::int64_t num_groups) const {
  WeightTensorPtr stored = take(suffix, kFloatTypes, {num_groups, rows_});
  return checked_scales(transpose(std::move(stored)), find(suffix)->dtype_name);
}

void StoredLinear::fail_at(std::string_view suffix, std::string_view problem) const {
  fail("tensor {}: {}", in_quotes(name_of(suffix)), problem);
}

StoredScales checked_scales(WeightTensorPtr stored, std::string_view dtype) {
  ScaleType type = ScaleType::kF32;
  if (dtype == "F16") type = ScaleType::kF16;
  if (dtype == "F8_E4M3") type = ScaleType::kE4m3;
  if (dtype == "F8_E8M0" || dtype == "U8") type = ScaleType::kE8m0;
  return {make_weight_tensor(stored->name(), dtype_of(type), {stored->rows(), stored->cols()},
                             [stored, type](std::int64_t row, const Tensor& dst) {
                               stored->read_rows(row, dst);
                               check_scales(stored->name(), type, row, dst);
                             }),
          type};
}

WeightTensorPtr computed_scales(std::string name, std::int64_t rows, std::int64_t cols,
                                std::function<void(std::int64_t, std::int64_t, float*)> compute) {
  const auto read = [=, compute = std::move(compute)](std::int64_t row, const Tensor& dst) {
    std::vector<float> values(dst.numel());
    compute(row, dst.dim(0), values.data());
    check_scales(name, ScaleType::kF32, row, Tensor(values.data(), DType::kF32, {dst.dim(0), cols}));
    convert(DType::kF32, values.data(), dst.dtype(), dst.data(), values.size());
  };
  return make_weight_tensor(name, DType::kF32, {rows, cols}, read);
}

Packing Packing::words(int bits, bool along_rows) {
  Packing packing{.bits = bits, .shifts = {}, .along_rows = along_rows};
  for (int shift = 0; shift < 32; shift += bits) packing.shifts.push_back(static_cast<std::uint8_t>(shift));
  return packing;
}

Packing Packing::nibbles(bool high_first) {
  return {.bits = 4,
          .shifts = high_first ? std::vector<std::uint8_t>{4, 0} : std::vector<std::uint8_t>{0, 4}};
}

WeightTensorPtr unpacked(const WeightTensorPtr& words, const Packing& packing, std::int64_t rows,
                         std::int64_t cols) {
  QUIRE_CHECK(words->rows() == (packing.along_rows ? packing.num_words(rows) : rows) &&
                  words->cols() == (packing.along_rows ? cols : packing.num_words(cols)),
              "{} as [{}, {}]", words->name(), rows, cols);
  const auto read = size_of(words->dtype()) == 1 ? read_unpacked<std::uint8_t> : read_unpacked<std::uint32_t>;
  return make_weight_tensor(words->name(), DType::kU8, {rows, cols},
                            [=](std::int64_t row, const Tensor& dst) { read(*words, packing, row, dst); });
}

void order_columns(WeightGroup& group, const StoredLinear& linear, std::string_view suffix) {
  const std::int64_t size = std::min(group.format.block_cols, group.cols);
  const auto groups = read_values<std::int32_t>(*linear.take(suffix, kI32Types, {group.cols}));
  const std::int64_t num_groups = ceil_div(group.cols, size);
  for (const std::int32_t index : groups) {
    if (index < 0 || index >= num_groups)
      linear.fail_at(
          suffix, format_text("holds group {}; there are {} groups of {} columns", index, num_groups, size));
  }
  std::vector<std::int64_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  const auto group_of = [&](std::int64_t col) { return groups[col]; };
  std::ranges::stable_sort(order, {}, group_of);
  for (std::int64_t i = 0; i < group.cols; ++i) {
    if (group_of(order[i]) != i / size)
      linear.fail_at(suffix, format_text("must give each group {} columns, and group {} has another number",
                                         size, i / size));
  }
  if (std::ranges::is_sorted(order)) return;
  WeightTensorPtr& codes = group.tensors.front().tensor;
  codes = pick_cols(std::move(codes), order);
  group.format.is_ordered = true;
  group.tensors.push_back(
      {WeightPart::kOrder, make_weight_tensor(linear.name_of(suffix), DType::kI32, {1, group.cols},
                                              [order](std::int64_t, const Tensor& dst) {
                                                std::ranges::copy(order, dst.data_as<std::int32_t>());
                                              })});
}

}  // namespace quire
