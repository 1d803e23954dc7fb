#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"

namespace quire {

std::size_t ReferenceBackend::total_memory() const {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

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

void ReferenceBackend::copy_blocks(std::span<const KvCacheLayer> layers, const Tensor& pairs) {
  const auto* ids = pairs.data_as<const std::int32_t>();
  for (std::int64_t i = 0; i < pairs.dim(0); ++i) {
    for (const KvCacheLayer& layer : layers) {
      for (const Tensor& half : {layer.keys, layer.values}) {
        const Tensor from = half.rows(ids[2 * i], 1);
        const Tensor to = half.rows(ids[2 * i + 1], 1);
        const auto bytes = static_cast<std::size_t>(half.dim(2) * half.dim(3)) * size_of(half.dtype());
        for (std::int64_t head = 0; head < half.dim(1); ++head) {
          const auto offset = static_cast<std::size_t>(head * half.stride(1)) * size_of(half.dtype());
          std::memcpy(to.data_as<std::byte>() + offset, from.data_as<std::byte>() + offset, bytes);
        }
      }
    }
  }
}

}  // namespace quire
