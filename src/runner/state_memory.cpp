#include "runner/state_memory.h"

#include "base/error.h"
#include "runner/cache_memory.h"

namespace quire {
namespace {

// One state in all slots, whose values are `begin` behind the first slot's.
Tensor state_at(float* begin, std::int64_t num_slots, std::int64_t stride,
                const std::vector<std::int64_t>& shape, DeviceKind device) {
  switch (shape.size()) {
    case 1:
      return Tensor(begin, DType::kF32, {num_slots, shape[0]}, device).with_strides({stride, 1});
    case 2:
      return Tensor(begin, DType::kF32, {num_slots, shape[0], shape[1]}, device)
          .with_strides({stride, shape[1], 1});
    default:
      QUIRE_CHECK(shape.size() == 3, "a state of {} dimensions", shape.size());
      return Tensor(begin, DType::kF32, {num_slots, shape[0], shape[1], shape[2]}, device)
          .with_strides({stride, shape[1] * shape[2], shape[2], 1});
  }
}

}  // namespace

StateMemory::Slots::Slots(Backend& backend, std::size_t slot_bytes, int num_slots, MemoryKind kind)
    : memory(backend.allocate(slot_bytes * static_cast<std::size_t>(num_slots), kind)),
      bytes(memory.data(), DType::kU8, {1, num_slots, static_cast<std::int64_t>(slot_bytes)},
            memory.device()) {}

StateMemory::StateMemory(Backend& backend, const RuntimeConfig& config) : backend_(backend) {
  const std::size_t slot_bytes = config.cache.state_bytes();
  if (slot_bytes == 0) return;
  device_.emplace(backend, slot_bytes, config.num_state_slots, MemoryKind::kDevice);
  if (config.num_host_state_slots > 0)
    host_.emplace(backend, slot_bytes, config.num_host_state_slots, MemoryKind::kHost);
  auto* begin = device_->bytes.data_as<float>();
  const auto stride = static_cast<std::int64_t>(slot_bytes / sizeof(float));
  for (const std::vector<std::int64_t>& shape : config.cache.fixed) {
    states_.push_back(state_at(begin, config.num_state_slots, stride, shape, device_->memory.device()));
    begin += states_.back().numel() / config.num_state_slots;
  }
}

void StateMemory::copy(const Tensor& saves, const Tensor& restores) {
  if (saves.dim(0) > 0) ops::copy_blocks(backend_, host_->bytes, device_->bytes, saves);
  if (!to_poison_.empty()) fill_with_nan(backend_, device_->bytes, std::exchange(to_poison_, {}));
  if (restores.dim(0) > 0) ops::copy_blocks(backend_, device_->bytes, host_->bytes, restores);
}

}  // namespace quire
