#include "runner/cache_memory.h"

#include <utility>

namespace quire {

CacheMemory::Blocks::Blocks(Backend& backend, const RuntimeConfig& config, int num_blocks, MemoryKind kind)
    : memory(backend.allocate(config.block_bytes() * static_cast<std::size_t>(num_blocks), kind)),
      bytes(memory.data(), DType::kU8,
            {config.cache.num_slots, num_blocks,
             static_cast<std::int64_t>(config.block_bytes()) / config.cache.num_slots},
            memory.device()) {}

CacheMemory::CacheMemory(Backend& backend, const RuntimeConfig& config)
    : backend_(backend), config_(config), device_(backend, config, config.num_blocks, MemoryKind::kDevice) {
  for (const CacheShape::Place& place : config.cache.places) {
    model_layers_.push_back(layer_at(place, config.cache.spec_of(model_layers_.size())));
    lane_of_.push_back(place.lane);
  }
  if (config.num_host_blocks > 0) host_.emplace(backend, config, config.num_host_blocks, MemoryKind::kHost);
}

KvCacheLayer CacheMemory::layer_at(const CacheShape::Place& place, const StateSpec& spec) const {
  const RuntimeConfig& c = config_;
  const bool has_codes = spec.code != CacheCode::kNone;
  const std::int64_t head = spec.head_bytes(c.dtype) * c.block_size();
  auto* const data = device_.bytes.data_as<std::byte>() + place.slot * device_.bytes.stride(0) +
                     place.begin * c.block_size();
  // Parts of each (block, head), from some bytes of it on.
  const auto part = [&](std::int64_t at, DType dtype, std::int64_t width) {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    return Tensor(data + at, dtype, {c.num_blocks, spec.num_kv_heads, c.block_size(), width},
                  device_.memory.device())
        .with_strides({device_.bytes.stride(1) / size, head / size, width, 1});
  };
  const DType dtype = has_codes ? DType::kU8 : c.dtype;
  const std::int64_t half =
      std::int64_t{c.block_size()} * spec.head_dim * static_cast<std::int64_t>(size_of(dtype));
  KvCacheLayer layer = {part(0, dtype, spec.head_dim), part(half, dtype, spec.head_dim), spec.code};
  if (has_codes) {
    layer.key_scales = part(2 * half, DType::kF32, 1);
    layer.value_scales = part(2 * half + std::int64_t{c.block_size()} * 4, DType::kF32, 1);
  }
  return layer;
}

void fill_with_nan(Backend& backend, const Tensor& bytes, const std::vector<BlockId>& blocks) {
  std::vector<std::uint8_t> nan(blocks.empty() ? 0 : static_cast<std::size_t>(bytes.dim(2)), 0xFF);
  for (const BlockId block : blocks) {
    for (std::int64_t slot = 0; slot < bytes.dim(0); ++slot) {
      auto* const to = bytes.data_as<std::byte>() + slot * bytes.stride(0) + block * bytes.stride(1);
      backend.copy(Tensor(to, DType::kU8, {std::ssize(nan)}, backend.device()),
                   Tensor(nan.data(), DType::kU8, {std::ssize(nan)}));
    }
    backend.wait(backend.record());
  }
}

void CacheMemory::copy_blocks(const Tensor& saves, const Tensor& copies, const Tensor& restores) {
  if (saves.dim(0) > 0) ops::copy_blocks(backend_, host_->bytes, device_.bytes, saves);
  fill_with_nan(backend_, device_.bytes, std::exchange(to_poison_, {}));
  if (copies.dim(0) > 0) ops::copy_blocks(backend_, device_.bytes, device_.bytes, copies);
  if (restores.dim(0) > 0) ops::copy_blocks(backend_, device_.bytes, host_->bytes, restores);
}

}  // namespace quire
