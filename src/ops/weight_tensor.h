#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/tensor.h"

namespace quire {

// One named tensor of a checkpoint, read on demand; nothing is held in memory. Seen as a matrix of rows() ×
// cols(): the first dimension by the product of the others (a vector is one row). Adapters give other views
// of the same bytes.
class WeightTensor {
 public:
  // Writes rows [row, row + dst.dim(0)) into dst, a contiguous host tensor [n, cols()]. Of a float type it is
  // any other, too: the values are converted with rounding to nearest even; else dst has the tensor's type.
  // Error when the file cannot be read. Thread contract: any thread, several at once.
  using ReadRows = std::function<void(std::int64_t row, const Tensor& dst)>;

  // dtype: as stored. read: is called for rows that lie in the tensor and a dst as described.
  WeightTensor(std::string name, DType dtype, std::vector<std::int64_t> shape, ReadRows read);
  WeightTensor(const WeightTensor&) = delete;
  WeightTensor& operator=(const WeightTensor&) = delete;

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  const std::vector<std::int64_t>& shape() const { return shape_; }
  std::int64_t rows() const { return shape_.size() < 2 ? 1 : shape_.front(); }
  std::int64_t cols() const { return cols_; }

  void read_rows(std::int64_t row, const Tensor& dst) const;

 private:
  std::string name_;
  DType dtype_;
  std::vector<std::int64_t> shape_;
  std::int64_t cols_;
  ReadRows read_;
};

using WeightTensorPtr = std::shared_ptr<const WeightTensor>;

inline WeightTensorPtr make_weight_tensor(std::string name, DType dtype, std::vector<std::int64_t> shape,
                                          WeightTensor::ReadRows read) {
  return std::make_shared<const WeightTensor>(std::move(name), dtype, std::move(shape), std::move(read));
}

// Rows [row, row + count), one after the other. T: the type of the tensor; float reads any float type.
template <typename T>
std::vector<T> read_values(const WeightTensor& tensor, std::int64_t row, std::int64_t count) {
  const DType dtype = std::is_same_v<T, float> ? DType::kF32 : tensor.dtype();
  std::vector<T> values(count * tensor.cols());
  tensor.read_rows(row, Tensor(values.data(), dtype, {count, tensor.cols()}));
  return values;
}
template <typename T>
std::vector<T> read_values(const WeightTensor& tensor) {
  return read_values<T>(tensor, 0, tensor.rows());
}

// A shape without its dimensions of 1: shapes that differ in these alone hold the same elements in one order.
inline std::vector<std::int64_t> without_ones(std::vector<std::int64_t> shape) {
  std::erase(shape, 1);
  return shape;
}

// Rows [begin, begin + count) of a tensor: one rank's shard of a column-parallel weight.
WeightTensorPtr slice_rows(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count);
// Columns [begin, begin + count): one rank's shard of a row-parallel weight.
WeightTensorPtr slice_cols(WeightTensorPtr tensor, std::int64_t begin, std::int64_t count);
// A matrix of a tensor of them, [matrices, rows, cols]. Every read reads all of it.
WeightTensorPtr pick_matrix(WeightTensorPtr tensor, std::int64_t index);
// A matrix with rows and columns exchanged. Holds all of it in memory from the first read on.
WeightTensorPtr transpose(WeightTensorPtr tensor);
// Of rows, or columns, of several parts by turns, the n of one part.
std::vector<std::int64_t> by_turns(std::int64_t n, std::int64_t parts, std::int64_t part);
// These rows (of a vector: elements), in this order.
WeightTensorPtr pick_rows(WeightTensorPtr tensor, std::vector<std::int64_t> rows);
// These columns of a matrix, in this order.
WeightTensorPtr pick_cols(WeightTensorPtr tensor, std::vector<std::int64_t> cols);
// `tensor` followed by rows of zeros up to `rows`: a vocabulary that does not divide by the ranks.
WeightTensorPtr pad_rows(WeightTensorPtr tensor, std::int64_t rows);
// The rows of matrices with as many columns, one below the other.
WeightTensorPtr stack_rows(std::vector<WeightTensorPtr> tensors);

}  // namespace quire
