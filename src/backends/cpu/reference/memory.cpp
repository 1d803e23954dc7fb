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

}  // namespace quire
