#include "runner/cache_memory.h"

#include "base/error.h"

namespace quire {

BlockMemory::BlockMemory(Backend& backend, int num_slots, std::size_t block_bytes, int num_blocks,
                         int num_host_blocks)
    : backend_(backend) {
  const auto allocate = [&](int count, MemoryKind kind, Buffer& memory) -> Tensor {
    const std::size_t bytes = block_bytes * static_cast<std::size_t>(count);
    if (bytes == 0) return {};
    memory = backend.allocate(bytes, kind);
    return {memory.data(),
            DType::kU8,
            {num_slots, count, static_cast<std::int64_t>(block_bytes) / num_slots},
            memory.device()};
  };
  device_ = allocate(num_blocks, MemoryKind::kDevice, device_memory_);
  host_ = allocate(num_host_blocks, MemoryKind::kHost, host_memory_);
}

void BlockMemory::copy(const BlockCopies& copies) {
  if (copies.saves.dim(0) > 0) ops::copy_blocks(backend_, host_, device_, copies.saves);
  for (const BlockId block : std::exchange(to_poison_, {})) fill_with_nan(block);
  if (copies.within.dim(0) > 0) ops::copy_blocks(backend_, device_, device_, copies.within);
  if (copies.restores.dim(0) > 0) ops::copy_blocks(backend_, device_, host_, copies.restores);
}

// Bytes that are NaN in every type.
void BlockMemory::fill_with_nan(BlockId block) {
  std::vector<std::uint8_t> nan(static_cast<std::size_t>(device_.dim(2)), 0xFF);
  for (std::int64_t slot = 0; slot < device_.dim(0); ++slot) {
    auto* const to = device_.data_as<std::byte>() + slot * device_.stride(0) + block * device_.stride(1);
    backend_.copy(Tensor(to, DType::kU8, {std::ssize(nan)}, backend_.device()),
                  Tensor(nan.data(), DType::kU8, {std::ssize(nan)}));
  }
  backend_.wait(backend_.record());
}

CacheMemory::CacheMemory(Backend& backend, const RuntimeConfig& config)
    : BlockMemory(backend, config.cache.num_slots, config.block_bytes(), config.num_blocks,
                  config.num_host_blocks),
      config_(config) {
  for (const CacheShape::Place& place : config.cache.places) {
    model_layers_.push_back(layer_at(place, config.cache.spec_of(model_layers_.size())));
    lane_of_.push_back(place.lane);
  }
}

KvCacheLayer CacheMemory::layer_at(const CacheShape::Place& place, const StateSpec& spec) const {
  const RuntimeConfig& c = config_;
  const bool has_codes = spec.code != CacheCode::kNone;
  const std::int64_t head = spec.head_bytes(c.dtype) * c.block_size();
  auto* const data =
      device_.data_as<std::byte>() + place.slot * device_.stride(0) + place.begin * c.block_size();
  // Parts of each (block, head), from some bytes of it on.
  const auto part = [&](std::int64_t at, DType dtype, std::int64_t width) {
    const auto size = static_cast<std::int64_t>(size_of(dtype));
    return Tensor(data + at, dtype, {c.num_blocks, spec.num_kv_heads, c.block_size(), width},
                  device_.device())
        .with_strides({device_.stride(1) / size, head / size, width, 1});
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

StateMemory::StateMemory(Backend& backend, const RuntimeConfig& config)
    : BlockMemory(backend, 1, config.cache.state_bytes(), config.num_state_slots,
                  config.num_host_state_slots) {
  auto* begin = device_.data_as<float>();
  const std::int64_t blocks = config.num_state_slots;
  const std::int64_t stride = device_.stride(1) / static_cast<std::int64_t>(sizeof(float));
  for (const std::vector<std::int64_t>& shape : config.cache.fixed) {
    QUIRE_CHECK(shape.size() == 2 || shape.size() == 3, "a state of {} dimensions", shape.size());
    const std::int64_t rows = shape[0], cols = shape[1];
    if (shape.size() == 2)
      states_.push_back(
          Tensor(begin, DType::kF32, {blocks, rows, cols}, device_.device()).with_strides({stride, cols, 1}));
    else
      states_.push_back(Tensor(begin, DType::kF32, {blocks, rows, cols, shape[2]}, device_.device())
                            .with_strides({stride, cols * shape[2], shape[2], 1}));
    begin += states_.back().numel() / blocks;
  }
}

}  // namespace quire
