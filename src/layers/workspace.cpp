#include "layers/workspace.h"

#include "base/error.h"

namespace quire {

void* Workspace::take(std::size_t bytes) {
  buffers_.push_back(device_.allocate(bytes, MemoryKind::kDevice));
  return buffers_.back().data();
}

Tensor Workspace::allocate(DType dtype, std::int64_t rows, std::int64_t cols) {
  void* data = take(static_cast<std::size_t>(rows * cols) * size_of(dtype));
  return Tensor(data, dtype, {rows, cols}, device_.device());
}

Tensor Workspace::activation(const std::string& name, DType dtype, std::int64_t cols) {
  Tensor& tensor = activations_[name + " " + std::to_string(cols)];
  if (!tensor.defined()) tensor = allocate(dtype, max_tokens_, cols);
  QUIRE_CHECK(tensor.dtype() == dtype, "activation {} is {}", name, tensor.describe());
  return tensor;
}

Tensor Workspace::scratch(const std::string& name, std::size_t bytes) {
  if (bytes == 0) return {};
  Tensor& tensor = activations_[name];
  const auto n = static_cast<std::int64_t>(bytes);
  if (!tensor.defined()) tensor = Tensor(take(bytes), DType::kU8, {n}, device_.device());
  QUIRE_CHECK(tensor.dtype() == DType::kU8 && tensor.dim(0) == n, "scratch {} is {}", name,
              tensor.describe());
  return tensor;
}

Tensor Workspace::upload(DType dtype, const void* values, std::int64_t n) {
  const Tensor tensor(allocate(dtype, 1, n).data(), dtype, {n}, device_.device());
  device_.copy(tensor, Tensor(const_cast<void*>(values), dtype, {n}));
  device_.wait(device_.record());  // the values may go away now
  return tensor;
}

Tensor Workspace::load(const WeightTensor& vector, float scale, float offset) {
  std::vector<float> values(vector.cols());
  vector.read_rows(0, Tensor(values.data(), DType::kF32, {1, vector.cols()}));
  for (float& value : values) value = (value + offset) * scale;
  return upload(values);
}

Tensor Workspace::load_matrix(const WeightTensor& matrix) {
  std::vector<float> values(matrix.rows() * matrix.cols());
  matrix.read_rows(0, Tensor(values.data(), DType::kF32, {matrix.rows(), matrix.cols()}));
  return Tensor(upload(values).data(), DType::kF32, {matrix.rows(), matrix.cols()}, device_.device());
}

}  // namespace quire
