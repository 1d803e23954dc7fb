#include <sys/mman.h>

#include <cstring>

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"
#include "base/host_memory.h"

namespace quire {

std::size_t ReferenceBackend::total_memory() const { return host_memory(); }

// Pages of zeros that cost nothing until they are touched.
Buffer ReferenceBackend::allocate(std::size_t bytes, MemoryKind) {
  if (bytes == 0) return {};
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) fail("out of memory: {} bytes are not to be had", bytes);
  return {std::shared_ptr<void>(data, [bytes](void* p) { munmap(p, bytes); }), bytes, DeviceKind::kCpu};
}

void ReferenceBackend::copy(const Tensor& dst, const Tensor& src) {
  QUIRE_CHECK(dst.bytes() == src.bytes() && dst.contiguous() && src.contiguous(), "{} from {}",
              dst.describe(), src.describe());
  if (src.bytes() > 0) std::memcpy(dst.data(), src.data(), src.bytes());
}

void ReferenceBackend::update_block_tables(const Tensor& tables, const Tensor& entries) {
  for (std::int64_t i = 0; i < entries.dim(0); ++i) {
    const auto* entry = entries.data_as<const std::int32_t>() + 3 * i;
    tables.data_as<std::int32_t>()[entry[0] * tables.stride(0) + entry[1]] = entry[2];
  }
}

namespace {

// One half of a block in each head.
void copy_half(const Tensor& to, const Tensor& from) {
  const auto bytes = static_cast<std::size_t>(to.dim(2) * to.dim(3)) * size_of(to.dtype());
  const auto head_at = [](const Tensor& half, std::int64_t head) {
    return half.data_as<std::byte>() +
           static_cast<std::size_t>(head * half.stride(1)) * size_of(half.dtype());
  };
  for (std::int64_t head = 0; head < to.dim(1); ++head)
    std::memcpy(head_at(to, head), head_at(from, head), bytes);
}

}  // namespace

void ReferenceBackend::copy_blocks(std::span<const KvCacheLayer> to, std::span<const KvCacheLayer> from,
                                   const Tensor& pairs) {
  const auto* ids = pairs.data_as<const std::int32_t>();
  for (std::int64_t i = 0; i < pairs.dim(0); ++i) {
    for (std::size_t layer = 0; layer < to.size(); ++layer) {
      copy_half(to[layer].keys.rows(ids[2 * i + 1], 1), from[layer].keys.rows(ids[2 * i], 1));
      copy_half(to[layer].values.rows(ids[2 * i + 1], 1), from[layer].values.rows(ids[2 * i], 1));
    }
  }
}

}  // namespace quire
