#include "layers/workspace.h"

#include "base/error.h"

namespace quire {

Tensor Workspace::allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
  buffers_.push_back(device_.allocate(Tensor(nullptr, dtype, shape).bytes(), MemoryKind::kDevice));
  return Tensor(buffers_.back().data(), dtype, shape, device_.device());
}

Tensor Workspace::activation(const std::string& name, DType dtype, std::int64_t cols) {
  Tensor& tensor = activations_[name + " " + std::to_string(cols)];
  if (!tensor.defined()) tensor = allocate(dtype, {max_tokens_, cols});
  QUIRE_CHECK(tensor.dtype() == dtype, "activation {} is {}", name, tensor.describe());
  return tensor;
}

Tensor Workspace::scratch(const std::string& name, std::size_t bytes) {
  if (bytes == 0) return {};
  Tensor& tensor = activations_[name];
  const auto n = static_cast<std::int64_t>(bytes);
  if (!tensor.defined()) tensor = allocate(DType::kU8, {n});
  QUIRE_CHECK(tensor.dtype() == DType::kU8 && tensor.dim(0) == n, "scratch {} is {}", name,
              tensor.describe());
  return tensor;
}

Tensor Workspace::upload(DType dtype, const void* values, std::initializer_list<std::int64_t> shape) {
  const Tensor source(const_cast<void*>(values), dtype, shape);
  if (source.numel() == 0) return {};
  const Tensor tensor = allocate(dtype, shape);
  device_.copy(tensor, source);
  device_.wait(device_.record());  // the values may go away now
  return tensor;
}

Tensor Workspace::load(const WeightTensor& vector, float scale, float offset) {
  auto values = read_values<float>(vector);
  for (float& value : values) value = (value + offset) * scale;
  return upload(values);
}

Tensor Workspace::load_matrix(const WeightTensor& matrix) {
  return upload(DType::kF32, read_values<float>(matrix).data(), {matrix.rows(), matrix.cols()});
}

}  // namespace quire
