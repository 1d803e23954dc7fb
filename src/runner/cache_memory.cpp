#include "runner/cache_memory.h"

#include <utility>

#include "ops/ops.h"

namespace quire {

CacheMemory::Blocks::Blocks(Backend& backend, std::size_t block_bytes, int num_blocks, MemoryKind kind)
    : memory(backend.allocate(block_bytes * static_cast<std::size_t>(num_blocks), kind)),
      bytes(memory.data(), DType::kU8, {num_blocks, static_cast<std::int64_t>(block_bytes)},
            memory.device()) {}

CacheMemory::CacheMemory(Backend& backend, const RuntimeConfig& config)
    : backend_(backend),
      config_(config),
      device_(backend, config.block_bytes(), config.num_blocks, MemoryKind::kDevice) {
  for (const CacheShape::Place& place : config.cache.places) {
    model_layers_.push_back(layer_at(place.index));
    lane_of_.push_back(place.lane);
  }
  if (config.num_host_blocks > 0)
    host_.emplace(backend, config.block_bytes(), config.num_host_blocks, MemoryKind::kHost);
}

KvCacheLayer CacheMemory::layer_at(int index) const {
  const RuntimeConfig& c = config_;
  const std::int64_t half = std::int64_t{c.block_size()} * c.spec.head_dim;
  const std::int64_t layer = std::int64_t{c.num_kv_heads} * 2 * half;
  const auto half_at = [&](std::int64_t offset) {
    return Tensor(device_.bytes.data_as<std::byte>() + static_cast<std::size_t>(offset) * size_of(c.dtype),
                  c.dtype, {c.num_blocks, c.num_kv_heads, c.block_size(), c.spec.head_dim},
                  device_.memory.device())
        .with_strides({layer * c.cache.layers_per_block, 2 * half, c.spec.head_dim, 1});
  };
  return {half_at(index * layer), half_at(index * layer + half)};
}

void CacheMemory::copy_blocks(const Tensor& saves, const Tensor& copies, const Tensor& restores) {
  if (saves.dim(0) > 0) ops::copy_blocks(backend_, host_->bytes, device_.bytes, saves);
  std::vector<std::uint8_t> nan(to_poison_.empty() ? 0 : config_.block_bytes(), 0xFF);  // in every type
  for (const BlockId block : std::exchange(to_poison_, {})) {
    backend_.copy(device_.bytes.rows(block, 1), Tensor(nan.data(), DType::kU8, {1, std::ssize(nan)}));
    backend_.wait(backend_.record());
  }
  if (copies.dim(0) > 0) ops::copy_blocks(backend_, device_.bytes, device_.bytes, copies);
  if (restores.dim(0) > 0) ops::copy_blocks(backend_, device_.bytes, host_->bytes, restores);
}

}  // namespace quire
