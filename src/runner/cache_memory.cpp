#include "runner/cache_memory.h"

#include <utility>

#include "ops/ops.h"

namespace quire {

CacheMemory::CacheMemory(Backend& backend, const RuntimeConfig& config)
    : backend_(backend), config_(config), device_(allocate(config.num_blocks, MemoryKind::kDevice)) {
  for (const CacheShape::Place& place : config.cache.places) {
    model_layers_.push_back(device_.layers[static_cast<std::size_t>(place.index)]);
    lane_of_.push_back(place.lane);
  }
  if (config.num_host_blocks > 0) host_ = allocate(config.num_host_blocks, MemoryKind::kHost);
}

CacheMemory::Blocks CacheMemory::allocate(int num_blocks, MemoryKind kind) const {
  const RuntimeConfig& c = config_;
  Blocks blocks = {backend_.allocate(c.block_bytes() * static_cast<std::size_t>(num_blocks), kind)};
  const std::int64_t half = std::int64_t{c.block_size()} * c.spec.head_dim;
  const std::int64_t block = std::int64_t{c.num_kv_heads} * 2 * half;
  for (int layer = 0; layer < c.cache.layers_per_block; ++layer) {
    const auto half_at = [&](std::int64_t offset) {
      auto* data = static_cast<std::byte*>(blocks.memory.data()) +
                   static_cast<std::size_t>(layer * num_blocks * block + offset) * size_of(c.dtype);
      return Tensor(data, c.dtype, {num_blocks, c.num_kv_heads, c.block_size(), c.spec.head_dim},
                    blocks.memory.device())
          .with_strides({block, 2 * half, c.spec.head_dim, 1});
    };
    blocks.layers.push_back({half_at(0), half_at(half)});
  }
  return blocks;
}

void CacheMemory::copy_blocks(const Tensor& saves, const Tensor& copies, const Tensor& restores) {
  if (saves.dim(0) > 0) ops::copy_blocks(backend_, host_.layers, device_.layers, saves);
  for (const BlockId block : std::exchange(to_poison_, {})) {
    std::vector<std::uint8_t> nan(config_.block_bytes() / device_.layers.size(),
                                  0xFF);  // in every float type
    const auto bytes = std::ssize(nan);
    for (const KvCacheLayer& layer : device_.layers) {  // its values lie behind its keys
      backend_.copy(Tensor(layer.keys.rows(block, 1).data(), DType::kU8, {bytes}, backend_.device()),
                    Tensor(nan.data(), DType::kU8, {bytes}));
    }
    backend_.wait(backend_.record());
  }
  if (copies.dim(0) > 0) ops::copy_blocks(backend_, device_.layers, device_.layers, copies);
  if (restores.dim(0) > 0) ops::copy_blocks(backend_, device_.layers, host_.layers, restores);
}

}  // namespace quire
