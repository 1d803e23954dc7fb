#include "base/host_memory.h"

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace quire {

std::size_t host_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t allowed_memory() {
  constexpr const char* kUnified = "0::/";  // the line of the one hierarchy of version 2
  std::ifstream groups("/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line) && !line.starts_with(kUnified)) {
  }
  const std::string group = line.starts_with(kUnified) ? line.substr(4) : "";
  return std::min(host_memory(), control_group_memory("/sys/fs/cgroup", group));
}

std::size_t control_group_memory(const std::filesystem::path& root, const std::filesystem::path& group) {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  std::filesystem::path at = root;
  const auto read = [&] {
    std::size_t limit = 0;
    if (std::ifstream(at / "memory.max") >> limit) least = std::min(least, limit);  // or it says "max"
  };
  read();
  for (const std::filesystem::path& part : group) {
    at /= part;
    read();
  }
  return least;
}

void limit_kept_memory() {
  constexpr int kKept = 4 << 20;
  ::mallopt(M_TRIM_THRESHOLD, kKept);
  ::mallopt(M_MMAP_THRESHOLD, kKept);  // from here on allocations are no part of a heap
}

void give_back_memory() { ::malloc_trim(0); }

}  // namespace quire
