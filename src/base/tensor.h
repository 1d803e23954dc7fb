#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/dtype.h"

namespace quire {

enum class DeviceKind : std::uint8_t { kCpu, kCuda };

// A view of memory somebody else owns: at most four dimensions, strides in elements, the last dimension
// contiguous. Copying it copies the view. No allocation.
class Tensor {
 public:
  static constexpr int kMaxDims = 4;

  Tensor() = default;
  // A contiguous tensor at `data`.
  Tensor(void* data, DType dtype, std::span<const std::int64_t> shape, DeviceKind device = DeviceKind::kCpu);
  Tensor(void* data, DType dtype, std::initializer_list<std::int64_t> shape,
         DeviceKind device = DeviceKind::kCpu)
      : Tensor(data, dtype, std::span(shape.begin(), shape.size()), device) {}

  void* data() const { return data_; }
  template <typename T>
  T* data_as() const {
    return static_cast<T*>(data_);
  }
  DType dtype() const { return dtype_; }
  DeviceKind device() const { return device_; }
  int num_dims() const { return num_dims_; }
  std::span<const std::int64_t> shape() const { return std::span(shape_).first(num_dims_); }
  std::int64_t dim(int i) const { return shape_[i]; }
  std::int64_t stride(int i) const { return stride_[i]; }
  std::int64_t numel() const;
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  bool contiguous() const;
  bool defined() const { return data_ != nullptr; }

  // Elements [begin, begin + count) of dimension d.
  Tensor part(int d, std::int64_t begin, std::int64_t count) const;
  // Rows [begin, begin + count) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t count) const { return part(0, begin, count); }
  // Columns [begin, begin + count) of the last dimension; the result may be strided.
  Tensor columns(std::int64_t begin, std::int64_t count) const { return part(num_dims_ - 1, begin, count); }
  // The same elements with other strides between the leading dimensions, for interleaved layouts.
  Tensor with_strides(std::initializer_list<std::int64_t> strides) const;

  std::string describe() const;  // "bfloat16 [3, 64]"

 private:
  void* data_ = nullptr;
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> stride_{};
  DType dtype_ = DType::kF32;
  DeviceKind device_ = DeviceKind::kCpu;
  int num_dims_ = 0;
};

}  // namespace quire
