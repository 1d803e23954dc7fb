// Groups of tensors are cut, turned and renamed as a whole, and not within a block.
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "ops/weight_source.h"

namespace quire {
namespace {

// Element (row, column) of a tensor [rows, cols] is 100 * row + column.
class Numbered final : public WeightTensor {
 public:
  Numbered(std::string name, std::int64_t rows, std::int64_t cols)
      : name_(std::move(name)), shape_{rows, cols} {}

  const std::string& name() const override { return name_; }
  DType dtype() const override { return DType::kF32; }
  const std::vector<std::int64_t>& shape() const override { return shape_; }
  void read_rows(std::int64_t row, const Tensor& dst) const override {
    check_read(row, dst);
    for (std::int64_t i = 0; i < dst.numel(); ++i)
      dst.data_as<float>()[i] = static_cast<float>(100 * (row + i / cols()) + i % cols());
  }

 private:
  std::string name_;
  std::vector<std::int64_t> shape_;
};

std::vector<float> values_of(const WeightTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  tensor.read_rows(0, Tensor(values.data(), DType::kF32, {tensor.rows(), tensor.cols()}));
  return values;
}

// [8, 6] with a scale for each block of two rows and three columns.
WeightGroup in_blocks() {
  return {{{"weight", std::make_shared<Numbered>("q.weight", 8, 6)},
           {"scale", std::make_shared<Numbered>("q.scale", 4, 2), true}},
          {.block_rows = 2, .block_cols = 3},
          8,
          6};
}

TEST(WeightGroupTest, SlicesTakeWholeBlocks) {
  const WeightGroup rows = slice_rows(in_blocks(), 2, 4);
  EXPECT_EQ(rows.rows, 4);
  EXPECT_EQ(rows.tensors[0].tensor->shape(), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(values_of(*rows.tensors[1].tensor), (std::vector<float>{100, 101, 200, 201}));
  const WeightGroup cols = slice_cols(rows, 3, 3);
  EXPECT_EQ(cols.cols, 3);
  EXPECT_EQ(values_of(*slice_rows(cols, 0, 2).tensors[0].tensor),
            (std::vector<float>{203, 204, 205, 303, 304, 305}));
  EXPECT_EQ(values_of(*cols.tensors[1].tensor), (std::vector<float>{101, 201}));
}

TEST(WeightGroupTest, ABlockIsNotCut) {
  expect_error([] { slice_rows(in_blocks(), 3, 4); }, {"q.weight", "rows", "blocks of 2", "at 3"});
  expect_error([] { slice_rows(in_blocks(), 2, 3); }, {"q.weight", "at 5"});
  expect_error([] { slice_cols(in_blocks(), 0, 2); }, {"q.weight", "columns", "blocks of 3", "at 2"});
  expect_error([] { deinterleave(in_blocks(), 4, 2, 0); }, {"q.weight", "rows", "at 1"});
  EXPECT_NO_THROW(slice_rows(in_blocks(), 0, 8));
}

TEST(WeightGroupTest, TheLastBlockMayBeShort) {
  WeightGroup group = in_blocks();
  group.tensors[0].tensor = std::make_shared<Numbered>("q.weight", 7, 6);
  group.rows = 7;
  EXPECT_EQ(slice_rows(group, 4, 3).tensors[1].tensor->rows(), 2);
  expect_error([&] { slice_rows(group, 4, 1); }, {"at 5"});
  const WeightGroup padded = pad_rows(group, 9);
  EXPECT_EQ(padded.tensors[0].tensor->rows(), 9);
  EXPECT_EQ(padded.tensors[1].tensor->rows(), 5);
}

TEST(WeightGroupTest, TransposingAndTakingPartsKeepTensorsTogether) {
  const WeightGroup turned = transpose(in_blocks());
  EXPECT_EQ(turned.rows, 6);
  EXPECT_EQ(turned.format, (LinearFormat{.block_rows = 3, .block_cols = 2}));
  EXPECT_EQ(values_of(*slice_rows(turned, 3, 3).tensors[1].tensor), (std::vector<float>{1, 101, 201, 301}));
  // Two groups of two parts of two rows.
  const WeightGroup part = deinterleave(in_blocks(), 2, 2, 1);
  EXPECT_EQ(part.rows, 4);
  EXPECT_EQ(values_of(*part.tensors[1].tensor), (std::vector<float>{100, 101, 300, 301}));
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

class OneSource final : public WeightSource {
 public:
  bool contains(std::string_view) const override { return true; }
  WeightTensorPtr take(std::string_view name, const std::vector<std::int64_t>& shape) override {
    return std::make_shared<Numbered>(std::string(name), shape[0], shape[1]);
  }
};

TEST(WeightGroupTest, APrefixIsSpelledAsItStandsBeforeAName) {
  OneSource source;
  const RenamedWeights::Renames renames = {{"model.layers", "h"}, {"q_proj", "c_attn"}};
  RenamedWeights renamed(source, renames);
  const WeightGroup group = renamed.take_linear("model.layers.3.q_proj", 4, 2);
  EXPECT_EQ(group.tensors.front().tensor->name(), "h.3.c_attn.weight");
  EXPECT_EQ(group.rows, 4);
  EXPECT_EQ(group.cols, 2);
}

TEST(WeightGroupTest, NoRenameSeesTheResultOfAnother) {
  OneSource source;
  const RenamedWeights renamed(source, {{"first", "second"}, {"second", "third"}, {"a.b", "c"}});
  const auto name_of = [&](const char* name) { return RenamedWeights(renamed).take(name, {1, 1})->name(); };
  EXPECT_EQ(name_of("x.first.weight"), "x.second.weight");
  EXPECT_EQ(name_of("x.second.weight"), "x.third.weight");
  EXPECT_EQ(name_of("first.second.first"), "second.third.second");
  EXPECT_EQ(name_of("x.firsts.weight"), "x.firsts.weight");  // whole components only
  EXPECT_EQ(name_of("x.a.b.weight"), "x.c.weight");
  EXPECT_EQ(name_of("x.a.bb.weight"), "x.a.bb.weight");
  EXPECT_EQ(name_of("a.b"), "c");
}

TEST(WeightGroupTest, RowsArePickedInAnyOrder) {
  const auto matrix = std::make_shared<Numbered>("a", 4, 2);
  EXPECT_EQ(values_of(*pick_rows(WeightTensorPtr(matrix), {2, 3, 0})),
            (std::vector<float>{200, 201, 300, 301, 0, 1}));
  const WeightGroup group = pick_rows(WeightGroup::plain(matrix), {1, 1});
  EXPECT_EQ(group.rows, 2);
  EXPECT_EQ(values_of(*group.tensors.front().tensor), (std::vector<float>{100, 101, 100, 101}));
  EXPECT_THROW(pick_rows(WeightTensorPtr(matrix), {4}), InternalError);
  EXPECT_THROW(pick_rows(in_blocks(), {1, 0}), Error);  // rows that share a block
}

}  // namespace
}  // namespace quire
