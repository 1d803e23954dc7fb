// Groups of tensors are cut, turned and renamed as a whole, and not within a block.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error.h"
#include "expect_error.h"
#include "ops/weight_source.h"

namespace quire {
namespace {

// Element (row, column) of a tensor [rows, cols] is 100 * row + column.
class Numbered final : public WeightTensor {
 public:
  Numbered(std::string name, std::int64_t rows, std::int64_t cols)
      : WeightTensor(std::move(name), DType::kF32, {rows, cols}, [cols](std::int64_t row, const Tensor& dst) {
          for (std::int64_t i = 0; i < dst.numel(); ++i)
            dst.data_as<float>()[i] = static_cast<float>(100 * (row + i / cols) + i % cols);
        }) {}
};

// The columns of 31, 30, …
class Backwards final : public WeightTensor {
 public:
  explicit Backwards(std::int64_t cols)
      : WeightTensor("q.order", DType::kI32, {cols}, [cols](std::int64_t, const Tensor& dst) {
          for (std::int64_t i = 0; i < cols; ++i)
            dst.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(cols - 1 - i);
        }) {}
};

std::vector<float> values_of(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  tensor.read_rows(0, Tensor(values.data(), DType::kF32, {tensor.rows(), tensor.cols()}));
  return values;
}

// Codes 0 to 255 over and over.
class Codes final : public WeightTensor {
 public:
  Codes(std::string name, std::int64_t rows, std::int64_t cols)
      : WeightTensor(std::move(name), DType::kU8, {rows, cols}, [cols](std::int64_t row, const Tensor& dst) {
          for (std::int64_t i = 0; i < dst.numel(); ++i)
            dst.data_as<std::uint8_t>()[i] = static_cast<std::uint8_t>(row * cols + i);
        }) {}
};

constexpr LinearFormat kBlocks = {.code = CodeType::kInt,
                                  .bits = 8,
                                  .code_offset = 10,
                                  .block_rows = 2,
                                  .block_cols = 32,
                                  .scale = ScaleType::kF32};

// [8, 96] with a scale for each block of two rows and 32 columns.
WeightGroup in_blocks(std::int64_t rows = 8) {
  return {{{WeightPart::kWeight, std::make_shared<Codes>("q.weight", rows, 96)},
           {WeightPart::kScale, std::make_shared<Numbered>("q.scale", (rows + 1) / 2, 3)}},
          kBlocks,
          rows,
          96};
}

float value_in_blocks(std::int64_t row, std::int64_t col) {
  const auto code = static_cast<std::uint8_t>(row * 96 + col);
  return static_cast<float>(100 * (row / 2) + col / 32) * static_cast<float>(code - 10);
}

// That a group's values are those of in_blocks at row_of(row) and column first_col + column.
void expect_values(const WeightGroup& group, const std::function<std::int64_t(std::int64_t)>& row_of,
                   std::int64_t first_col = 0) {
  const std::vector<float> values = values_of(*dequantized(group));
  ASSERT_EQ(std::ssize(values), group.rows * group.cols);
  for (std::int64_t i = 0; i < std::ssize(values); ++i)
    ASSERT_EQ(values[static_cast<std::size_t>(i)],
              value_in_blocks(row_of(i / group.cols), first_col + i % group.cols))
        << i;
}

TEST(WeightGroupTest, SlicesTakeWholeBlocks) {
  const WeightGroup rows = slice_rows(in_blocks(), 2, 4);
  EXPECT_EQ(rows.format, kBlocks);
  EXPECT_EQ(rows.find(WeightPart::kScale)->shape(), (std::vector<std::int64_t>{2, 3}));
  expect_values(rows, [](std::int64_t row) { return row + 2; });
  const WeightGroup cols = slice_cols(rows, 32, 64);
  EXPECT_EQ(cols.format, kBlocks);
  EXPECT_EQ(cols.cols, 64);
  expect_values(
      cols, [](std::int64_t row) { return row + 2; }, 32);
}

TEST(WeightGroupTest, ACutMakesBlocksSmaller) {
  const WeightGroup rows = slice_rows(in_blocks(), 3, 4);
  EXPECT_EQ(rows.format.block_rows, 1);
  expect_values(rows, [](std::int64_t row) { return row + 3; });
  const WeightGroup cols = slice_cols(in_blocks(), 48, 48);
  EXPECT_EQ(cols.format.block_cols, 16);
  expect_values(
      cols, [](std::int64_t row) { return row; }, 48);
  expect_error([] { slice_cols(in_blocks(), 0, 40); }, {"q.weight", "columns", "blocks of 32", "of 8"});
  EXPECT_EQ(slice_rows(in_blocks(7), 2, 5).format, kBlocks);  // the last block is cut short as it is
}

TEST(WeightGroupTest, OneScaleServesAnyCut) {
  WeightGroup group = in_blocks();
  group.format.block_rows = group.format.block_cols = LinearFormat::kWhole;
  group.tensors[1].tensor = std::make_shared<Numbered>("q.scale", 1, 1);
  const WeightGroup cut = pick_rows(slice_cols(slice_rows(group, 3, 4), 8, 24), {2, 0});
  EXPECT_EQ(cut.format, group.format);
  EXPECT_EQ(dequantized(cut)->shape(), (std::vector<std::int64_t>{2, 24}));
}

TEST(WeightGroupTest, SuperBlocksAreCutOnTheirOwn) {
  WeightGroup group = in_blocks();
  group.format.block_rows = 1;
  group.format.scale = ScaleType::kU8;
  group.format.super_cols = 96;
  group.tensors[1].tensor = std::make_shared<Codes>("q.scale", 8, 3);
  group.tensors.push_back({WeightPart::kSuperScale, std::make_shared<Numbered>("q.super", 8, 1)});
  const std::vector<float> whole = values_of(*dequantized(group));
  const WeightGroup cut = slice_cols(group, 64, 32);
  EXPECT_EQ(cut.format.block_cols, 32);
  EXPECT_EQ(cut.format.super_cols, 32);
  const std::vector<float> values = values_of(*dequantized(cut));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], whole[i / 32 * 96 + 64 + i % 32]);
  EXPECT_EQ(whole[96 + 40], 100.0F * 4 * (static_cast<float>(96 + 40) - 10));
  std::vector<std::int64_t> halves(96);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::int64_t>((i + 48) % 96);
  const WeightGroup picked = pick_cols(group, halves);
  EXPECT_EQ(picked.format.block_cols, 16);
  EXPECT_EQ(picked.format.super_cols, 48);
  const std::vector<float> turned = values_of(*dequantized(picked));
  for (std::size_t i = 0; i < turned.size(); ++i) EXPECT_EQ(turned[i], whole[i / 96 * 96 + (i + 48) % 96]);
}

TEST(WeightGroupTest, OffsetsAreTakenAway) {
  WeightGroup zeros = in_blocks();
  zeros.format.offset = OffsetType::kZero;
  zeros.tensors.push_back({WeightPart::kOffset, std::make_shared<Codes>("q.zeros", 4, 3)});
  EXPECT_EQ(values_of(*dequantized(zeros))[2 * 96 + 40], 101.0F * (232 - 10) - 101.0F * 4);
  WeightGroup minima = in_blocks();
  minima.format.offset = OffsetType::kMinimum;
  minima.format.minimum = ScaleType::kF32;
  minima.tensors.push_back({WeightPart::kOffset, std::make_shared<Numbered>("q.minima", 4, 3)});
  EXPECT_EQ(values_of(*dequantized(minima))[2 * 96 + 40], 101.0F * (232 - 10) - 101.0F);
}

TEST(WeightGroupTest, ColumnsOfAnOrderAreNotCut) {
  WeightGroup group = slice_cols(in_blocks(), 0, 32);
  group.format.is_ordered = true;
  group.tensors.push_back({WeightPart::kOrder, std::make_shared<Backwards>(32)});
  expect_values(slice_rows(in_blocks(), 4, 1), [](std::int64_t) { return 4; });
  const std::vector<float> values = values_of(*dequantized(slice_rows(group, 4, 1)));
  for (std::int64_t i = 0; i < 32; ++i)
    EXPECT_EQ(values[static_cast<std::size_t>(i)], value_in_blocks(4, 31 - i));
  expect_error([&] { slice_cols(group, 0, 16); }, {"q.weight", "order", "cannot be cut"});
}

TEST(WeightGroupTest, PartsOfRowsKeepTheirScales) {
  // Two groups of two parts of two rows.
  const auto row_of = [](std::int64_t row) { return row / 2 * 4 + 2 + row % 2; };
  const WeightGroup part = pick_rows(in_blocks(), {2, 3, 6, 7});
  EXPECT_EQ(part.rows, 4);
  EXPECT_EQ(part.format, kBlocks);
  expect_values(part, row_of);
  expect_values(pick_rows(in_blocks(), by_turns(4, 2, 0)), [](std::int64_t row) { return 2 * row; });
  expect_values(pick_rows(in_blocks(), {5, 0, 5}), [](std::int64_t row) { return row == 1 ? 0 : 5; });
  const WeightGroup blocks = pick_rows(in_blocks(), {4, 5, 0, 1});
  EXPECT_EQ(blocks.format, kBlocks);
  expect_values(blocks, [](std::int64_t row) { return (row + 4) % 6; });
  EXPECT_EQ(pick_rows(in_blocks(), {3, 4, 0, 1}).format.block_rows, 1);
  EXPECT_EQ(pad_rows(in_blocks(7), 9).find(WeightPart::kScale)->rows(), 5);
}

TEST(WeightGroupTest, QuantisedMatricesAreNotTransposed) {
  expect_error([] { transpose(in_blocks()); }, {"q.weight", "transposed"});
}

TEST(WeightGroupTest, OnlyPartsOfOneFormatAndOrderAreOneMatrix) {
  std::vector<WeightGroup> parts = {in_blocks(), slice_rows(in_blocks(), 3, 2), in_blocks()};
  EXPECT_EQ(num_alike(parts), 3U);
  const QuantizedRows all = quantized_rows(parts);
  EXPECT_EQ(all.rows, 18);
  std::vector<float> scales(18 * 3), minima(18 * 3, 1);
  read_block_scales(all, 0, 18, scales.data(), minima.data());
  EXPECT_EQ(scales[9 * 3 + 1], 201);  // row 4 of the second part's whole
  EXPECT_EQ(minima[9 * 3 + 1], 0);
  parts[1].format.code_offset = 0;
  EXPECT_EQ(num_alike(parts), 1U);
  EXPECT_EQ(num_alike(std::span(parts).subspan(1)), 1U);
  EXPECT_THROW(quantized_rows(parts), InternalError);
}

TEST(LinearFormatTest, CodesOfE4m3AreNumbers) {
  EXPECT_EQ(from_e4m3(0x00), 0.0F);
  EXPECT_EQ(from_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(from_e4m3(0x08), 0x1p-6F);
  EXPECT_EQ(from_e4m3(0x38), 1.0F);
  EXPECT_EQ(from_e4m3(0x7E), 448.0F);
  EXPECT_EQ(from_e4m3(0xB9), -1.125F);
  EXPECT_TRUE(std::isnan(from_e4m3(0x7F)) && std::isnan(from_e4m3(0xFF)));
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const std::uint8_t back = to_e4m3(from_e4m3(bits));
    EXPECT_EQ(back, (bits & 0x7F) == 0x7F ? 0x7F : bits);
  }
  EXPECT_EQ(to_e4m3(1.0625F), 0x38);  // between 1 and 1.125: the even one
  EXPECT_EQ(to_e4m3(1.1875F), 0x3A);
  EXPECT_EQ(to_e4m3(-1e9F), 0xFE);
  EXPECT_EQ(to_e4m3(0x1.1p-10F), 0x01);
  EXPECT_EQ(to_e4m3(0x1p-10F), 0x00);
}

TEST(LinearFormatTest, CodesOfE8m0ArePowersOfTwo) {
  EXPECT_EQ(from_e8m0(127), 1.0F);
  EXPECT_EQ(from_e8m0(0), 0x1p-127F);
  EXPECT_EQ(from_e8m0(254), 0x1p127F);
  EXPECT_TRUE(std::isnan(from_e8m0(255)));
}

TEST(WeightGroupTest, PlainPartsAreOneMatrix) {
  const WeightGroup parts[] = {WeightGroup::plain(std::make_shared<Numbered>("a", 2, 3)),
                               WeightGroup::plain(std::make_shared<Numbered>("b", 1, 3)),
                               WeightGroup::plain(std::make_shared<Numbered>("c", 2, 3))};
  EXPECT_EQ(shape_of(parts).rows, 5);
  EXPECT_EQ(shape_of(parts).cols, 3);
  EXPECT_EQ(values_of(*plain_rows(parts)),
            (std::vector<float>{0, 1, 2, 100, 101, 102, 0, 1, 2, 0, 1, 2, 100, 101, 102}));
  EXPECT_EQ(values_of(*slice_rows(plain_rows(parts), 1, 3)),
            (std::vector<float>{100, 101, 102, 0, 1, 2, 0, 1, 2}));
  const WeightGroup other[] = {in_blocks()};
  EXPECT_THROW(plain_rows(other), InternalError);
  const WeightGroup uneven[] = {parts[0], WeightGroup::plain(std::make_shared<Numbered>("d", 2, 4))};
  EXPECT_THROW(shape_of(uneven), InternalError);
}

TEST(WeightGroupTest, ProductsOfInt8HaveSumsOf32Bits) {
  LinearFormat format = {.code = CodeType::kInt, .bits = 8, .input = {.code = InputFormat::Code::kI8}};
  EXPECT_NO_THROW(check_input_columns(format, 132103, "q"));
  expect_error([&] { check_input_columns(format, 132104, "q"); }, {"tensor q", "fewer than 132104"});
  format.input = {};
  EXPECT_NO_THROW(check_input_columns(format, 132104, "q"));
}

TEST(WeightGroupTest, RowsArePickedInAnyOrder) {
  const auto matrix = std::make_shared<Numbered>("a", 4, 2);
  EXPECT_EQ(values_of(*pick_rows(WeightTensorPtr(matrix), {2, 3, 0})),
            (std::vector<float>{200, 201, 300, 301, 0, 1}));
  const WeightGroup group = pick_rows(WeightGroup::plain(matrix), {1, 1});
  EXPECT_EQ(group.rows, 2);
  EXPECT_EQ(values_of(*group.tensors.front().tensor), (std::vector<float>{100, 101, 100, 101}));
  EXPECT_THROW(pick_rows(WeightTensorPtr(matrix), {4}), InternalError);
}

}  // namespace
}  // namespace quire
