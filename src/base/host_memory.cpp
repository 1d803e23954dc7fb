#include "base/host_memory.h"

#include <malloc.h>
#include <unistd.h>

namespace quire {

std::size_t host_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void limit_kept_memory() {
  constexpr int kKept = 4 << 20;
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kKept);  // from here on allocations are no part of a heap
}

void give_back_memory() { ::malloc_trim(0); }

}  // namespace quire
