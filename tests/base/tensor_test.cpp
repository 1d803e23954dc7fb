#include "base/tensor.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "base/error.h"

namespace quire {
namespace {

class TensorTest : public ::testing::Test {
 protected:
  TensorTest() { std::iota(data_.begin(), data_.end(), 0.0F); }
  Tensor tensor(std::initializer_list<std::int64_t> shape) { return {data_.data(), DType::kF32, shape}; }
  static float first(const Tensor& view) { return *view.data_as<float>(); }

  std::array<float, 24> data_{};
};

TEST_F(TensorTest, ContiguousStridesFollowTheShape) {
  const Tensor t = tensor({2, 3, 4});
  EXPECT_EQ(t.num_dims(), 3);
  EXPECT_EQ(t.stride(0), 12);
  EXPECT_EQ(t.stride(1), 4);
  EXPECT_EQ(t.stride(2), 1);
  EXPECT_EQ(t.numel(), 24);
  EXPECT_EQ(t.bytes(), 96U);
  EXPECT_TRUE(t.contiguous());
}

TEST_F(TensorTest, RowsShareTheMemory) {
  const Tensor rows = tensor({6, 4}).rows(2, 3);
  EXPECT_EQ(first(rows), 8.0F);
  EXPECT_EQ(rows.dim(0), 3);
  EXPECT_EQ(rows.dim(1), 4);
  EXPECT_TRUE(rows.contiguous());
}

TEST_F(TensorTest, ColumnsKeepTheRowStride) {
  const Tensor columns = tensor({6, 4}).columns(1, 2);
  EXPECT_EQ(first(columns), 1.0F);
  EXPECT_EQ(columns.dim(1), 2);
  EXPECT_EQ(columns.stride(0), 4);
  EXPECT_FALSE(columns.contiguous());
  EXPECT_EQ(first(columns.rows(5, 1)), 21.0F);
}

TEST_F(TensorTest, OneRowOfColumnsIsContiguous) {
  EXPECT_TRUE(tensor({6, 4}).columns(1, 2).rows(3, 1).contiguous());
}

TEST_F(TensorTest, StridesCanBeReplaced) {
  const Tensor t = tensor({2, 3}).with_strides({12, 1});
  EXPECT_EQ(first(t.rows(1, 1)), 12.0F);
  EXPECT_FALSE(t.contiguous());
}

TEST_F(TensorTest, ViewsBeyondTheTensorAreBugs) {
  const Tensor t = tensor({6, 4});
  EXPECT_THROW(t.rows(4, 3), InternalError);
  EXPECT_THROW(t.rows(-1, 1), InternalError);
  EXPECT_THROW(t.rows(0, -1), InternalError);
  EXPECT_THROW(t.columns(3, 2), InternalError);
  EXPECT_THROW(t.columns(-1, 1), InternalError);
  EXPECT_THROW(t.with_strides({4}), InternalError);
  EXPECT_NO_THROW(t.rows(6, 0));
}

TEST_F(TensorTest, ShapesThatCannotBeAreBugs) {
  EXPECT_THROW(tensor({1, 1, 1, 1, 1}), InternalError);
  EXPECT_THROW(tensor({2, -1}), InternalError);
}

TEST_F(TensorTest, EmptyAndUndefinedTensors) {
  EXPECT_EQ(tensor({0, 4}).numel(), 0);
  EXPECT_TRUE(tensor({0, 4}).contiguous());
  EXPECT_FALSE(Tensor().defined());
  EXPECT_TRUE(tensor({1}).defined());
}

TEST_F(TensorTest, DescribesItself) {
  EXPECT_EQ(Tensor(data_.data(), DType::kBF16, {3, 64}).describe(), "bfloat16 [3, 64]");
}

TEST(CheckTest, FailureNamesConditionAndMessage) {
  try {
    QUIRE_CHECK(1 + 1 == 3, "sum of {}", 2);
    FAIL() << "did not throw";
  } catch (const InternalError& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("tensor_test.cpp:"), std::string::npos) << message;
    EXPECT_NE(message.find("1 + 1 == 3 is false: sum of 2"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace quire
