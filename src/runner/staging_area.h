#pragma once

#include <algorithm>
#include <span>

#include "base/error.h"
#include "ops/device.h"

namespace quire {

inline constexpr int kMaxStepsInFlight = 2;  // submitted to a runner and not collected

// Memory an op wants for itself: a buffer, and the tensor that it is told; none of either where it wants
// none.
inline Buffer allocate_workspace(Device& device, std::size_t bytes) {
  return bytes == 0 ? Buffer() : device.allocate(bytes, MemoryKind::kDevice);
}
inline Tensor workspace_of(const Buffer& buffer) {
  if (buffer.bytes() == 0) return {};
  return Tensor(buffer.data(), DType::kU8, {static_cast<std::int64_t>(buffer.bytes())}, buffer.device());
}

// Small arrays of one step, laid out side by side in host memory and brought to the device in one copy. The
// device side is shared by all steps, which run one after the other; the host side is a step's own, since it
// is written while an earlier step may not have been copied yet.
class StagingArea {
 public:
  StagingArea(Device& queue, const Buffer& device)
      : queue_(queue), host_(queue.allocate(device.bytes(), MemoryKind::kHost)), device_(device) {}

  void clear() { used_ = 0; }

  // The host side of an array [n]; `tensor` becomes its device side, valid once upload() was called.
  template <typename T>
  std::span<T> take(DType dtype, std::int64_t n, Tensor& tensor) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    QUIRE_CHECK(sizeof(T) == size_of(dtype) && used_ + bytes <= host_.bytes());
    tensor = Tensor(static_cast<std::byte*>(device_.data()) + used_, dtype, {n}, device_.device());
    T* host = reinterpret_cast<T*>(static_cast<std::byte*>(host_.data()) + used_);
    used_ = (used_ + bytes + 63) / 64 * 64;
    return {host, static_cast<std::size_t>(n)};
  }

  // A copy of `values`: i32 [values.size() / cols, cols].
  Tensor take_rows(std::span<const std::int32_t> values, std::int64_t cols) {
    Tensor flat;
    const auto staged = take<std::int32_t>(DType::kI32, std::ssize(values), flat);
    std::copy(values.begin(), values.end(), staged.begin());
    return Tensor(flat.data(), DType::kI32, {std::ssize(values) / cols, cols}, flat.device());
  }

  void upload() {
    const auto bytes = static_cast<std::int64_t>(std::min(used_, host_.bytes()));
    queue_.copy(Tensor(device_.data(), DType::kU8, {bytes}, device_.device()),
                Tensor(host_.data(), DType::kU8, {bytes}));
  }

 private:
  Device& queue_;
  Buffer host_;
  Buffer device_;
  std::size_t used_ = 0;
};

}  // namespace quire
