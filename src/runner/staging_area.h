#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <type_traits>

#include "base/error.h"
#include "ops/device.h"

namespace quire {

inline constexpr int kMaxStepsInFlight = 2;  // submitted to a runner and not collected

// Small arrays of one step, laid out side by side in host memory and brought to the device in one copy. The
// device side is shared by all steps, which run one after the other; the host side is a step's own, since it
// is written while an earlier step may not have been copied yet.
class StagingArea {
 public:
  StagingArea(Device& queue, const Buffer& device)
      : queue_(queue), host_(queue.allocate(device.bytes(), MemoryKind::kHost)), device_(device) {}

  void clear() { used_ = 0; }

  // The host side of an array [n]; `tensor` becomes its device side, valid once upload() was called. Of
  // structures of k int32 the device has [n, k].
  template <typename T = std::int32_t>
  std::span<T> take(std::int64_t n, Tensor& tensor) {
    constexpr DType kDType = std::is_same_v<T, float>                  ? DType::kF32
                             : std::is_integral_v<T> && sizeof(T) == 8 ? DType::kI64
                                                                       : DType::kI32;
    constexpr std::int64_t kColumns = sizeof(T) / sizeof(std::int32_t);
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    QUIRE_CHECK(used_ + bytes <= host_.bytes());
    void* const place = static_cast<std::byte*>(device_.data()) + used_;
    tensor = std::is_class_v<T> ? Tensor(place, kDType, {n, kColumns}, device_.device())
                                : Tensor(place, kDType, {n}, device_.device());
    T* host = reinterpret_cast<T*>(static_cast<std::byte*>(host_.data()) + used_);
    used_ = (used_ + bytes + 63) / 64 * 64;
    return {host, static_cast<std::size_t>(n)};
  }

  // An array of what value_of says of each item.
  template <typename Items, typename ValueOf = std::identity>
  Tensor put(const Items& items, ValueOf value_of = {}) {
    using T = std::decay_t<std::invoke_result_t<ValueOf, decltype(*std::begin(items))>>;
    Tensor tensor;
    std::ranges::transform(items, take<T>(std::ssize(items), tensor).begin(), value_of);
    return tensor;
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
