#include "ops/host_copies.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace quire {

void copy_pieces(Device& device, const Tensor& to, const Tensor& from) {
  if (to.contiguous() && from.contiguous()) return device.copy(to, from);
  QUIRE_CHECK(to.num_dims() == 2 || to.num_dims() == 4 ||
                  (to.num_dims() == 3 && to.rows(0, 1).contiguous() && from.rows(0, 1).contiguous()),
              "{}: what has strides are rows, fixed states, or four dimensions as a cache has",
              to.describe());
  for (std::int64_t i = 0; i < to.dim(0); ++i) {
    if (to.num_dims() < 4) device.copy(to.rows(i, 1), from.rows(i, 1));
    for (std::int64_t head = 0; to.num_dims() == 4 && head < to.dim(1); ++head)
      device.copy(to.rows(i, 1).part(1, head, 1), from.rows(i, 1).part(1, head, 1));
  }
}

HostCopies::~HostCopies() noexcept(false) {
  if (changed_.empty() || std::uncaught_exceptions() > 0) return;
  for (const auto& [tensor, copy] : changed_) copy_pieces(backend_, tensor, copy);
  backend_.wait(backend_.record());
}

Tensor HostCopies::read(const Tensor& tensor) {
  if (tensor.device() == DeviceKind::kCpu) return tensor;
  std::vector<std::string_view>& told = backend_.ops_on_host_;
  if (std::ranges::find(told, op_) == told.end()) {
    told.push_back(op_);
    log_warning("{} has no kernel for {}, which runs on the host: without graphs, one step at a time",
                backend_.name(), op_);
  }
  memory_.push_back(std::make_unique_for_overwrite<std::byte[]>(tensor.bytes()));
  const Tensor copy(memory_.back().get(), tensor.dtype(), tensor.shape());
  copy_pieces(backend_, copy, tensor);
  backend_.wait(backend_.record());
  return copy;
}

Tensor HostCopies::update(const Tensor& tensor) {
  const Tensor copy = read(tensor);
  if (tensor.device() != DeviceKind::kCpu) changed_.emplace_back(tensor, copy);
  return copy;
}

}  // namespace quire
