#include "base/tensor.h"

#include <algorithm>

#include "base/error.h"

namespace quire {

Tensor::Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, DeviceKind device)
    : data_(data), dtype_(dtype), device_(device), num_dims_(static_cast<int>(shape.size())) {
  QUIRE_CHECK(num_dims_ <= kMaxDims);
  std::ranges::copy(shape, shape_.begin());
  std::int64_t stride = 1;
  for (int i = num_dims_ - 1; i >= 0; --i) {
    QUIRE_CHECK(shape_[i] >= 0);
    stride_[i] = stride;
    stride *= shape_[i];
  }
}

std::int64_t Tensor::numel() const {
  std::int64_t n = 1;
  for (const std::int64_t dim : shape()) n *= dim;
  return n;
}

bool Tensor::contiguous() const {
  std::int64_t expected = 1;
  for (int i = num_dims_ - 1; i >= 0; --i) {
    if (dim(i) != 1 && stride(i) != expected) return false;
    expected *= dim(i);
  }
  return true;
}

Tensor Tensor::part(int d, std::int64_t begin, std::int64_t count) const {
  QUIRE_CHECK(num_dims_ >= 1 && begin >= 0 && count >= 0 && begin + count <= dim(d),
              "{} + {} of dimension {} of {}", begin, count, d, describe());
  Tensor view = *this;
  view.shape_[d] = count;
  view.data_ = static_cast<std::byte*>(data_) + static_cast<std::size_t>(begin * stride(d)) * size_of(dtype_);
  return view;
}

Tensor Tensor::with_strides(std::initializer_list<std::int64_t> strides) const {
  QUIRE_CHECK(static_cast<int>(strides.size()) == num_dims_);
  Tensor view = *this;
  std::ranges::copy(strides, view.stride_.begin());
  return view;
}

std::string Tensor::describe() const {
  return format_text("{} [{}]", to_string(dtype_), join_text(shape(), ", "));
}

}  // namespace quire
