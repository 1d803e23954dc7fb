#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/ops.h"

namespace quire::testing {

// Memory and a view of it, filled with random values that the dtype can hold.
class Matrix {
 public:
  Matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::mt19937& random, float scale = 1.0F)
      : memory_(static_cast<std::size_t>(rows * cols) * size_of(dtype)),
        tensor_(memory_.data(), dtype, {rows, cols}) {
    std::normal_distribution<float> normal(0.0F, scale);
    for (std::int64_t i = 0; i < rows * cols; ++i) {
      const float value = normal(random);
      convert(DType::kF32, &value, dtype, memory_.data() + static_cast<std::size_t>(i) * size_of(dtype), 1);
    }
  }

  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  const Tensor& tensor() const { return tensor_; }
  // All values as they are now, row by row.
  std::vector<double> values() const {
    std::vector<double> result;
    for (std::int64_t row = 0; row < tensor_.dim(0); ++row) {
      for (std::int64_t col = 0; col < tensor_.dim(1); ++col) result.push_back(at(row, col));
    }
    return result;
  }
  double at(std::int64_t row, std::int64_t col) const {
    float value = 0;
    convert(tensor_.dtype(), tensor_.rows(row, 1).columns(col, 1).data(), DType::kF32, &value, 1);
    return value;
  }
  Tensor vector() const { return Tensor(tensor_.data(), tensor_.dtype(), {tensor_.numel()}); }
  const std::vector<std::byte>& bytes() const { return memory_; }
  void set_bytes(const std::vector<std::byte>& bytes) {
    std::copy(bytes.begin(), bytes.end(), memory_.begin());
  }

 private:
  std::vector<std::byte> memory_;
  Tensor tensor_;
};

// [values]
template <typename T>
Tensor tensor_of(std::vector<T>& values, DType dtype) {
  return Tensor(values.data(), dtype, {std::ssize(values)});
}

// A weight that lies in memory, as a checkpoint's group has it.
inline WeightGroup plain(const Matrix& matrix) {
  const Tensor values = matrix.tensor();
  return WeightGroup::plain(make_weight_tensor("weight", values.dtype(), {values.dim(0), values.dim(1)},
                                               [values](std::int64_t row, const Tensor& dst) {
                                                 convert(values.dtype(), values.rows(row, 1).data(),
                                                         dst.dtype(), dst.data(),
                                                         static_cast<std::size_t>(dst.numel()));
                                               }));
}

// In float64.
inline double activated(double x, Activation activation) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

inline Tensor ints(std::vector<std::int32_t>& values) {
  return Tensor(values.data(), DType::kI32, {static_cast<std::int64_t>(values.size())});
}

}  // namespace quire::testing
