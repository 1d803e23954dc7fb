#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/device.h"
#include "ops/ops.h"

namespace quire {

// What an op's reference works on, in one call: tensors that lie in host memory themselves, copies of others.
class HostCopies {
 public:
  // op: its name, which is told once.
  HostCopies(Backend& backend, std::string_view op) : backend_(backend), op_(op) {}
  // Copies back what has changed, unless the op failed. Error where that cannot be done.
  ~HostCopies() noexcept(false);
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // What the op reads; undefined stays undefined.
  Tensor read(const Tensor& tensor);
  // The same in place of each.
  template <typename... Tensors>
  void fetch(Tensors&... tensors) {
    ((tensors = read(tensors)), ...);
  }
  // What the op changes, all of it or some.
  Tensor update(const Tensor& tensor);

 private:
  Backend& backend_;
  std::string_view op_;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::pair<Tensor, Tensor>> changed_;  // on the device, and its copy
};

// Copies a tensor to one of the same shape. What has strides has them between rows, or between fixed states,
// or is a part of a cache.
void copy_pieces(Device& device, const Tensor& to, const Tensor& from);

}  // namespace quire
