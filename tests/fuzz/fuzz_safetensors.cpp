// A safetensors file of arbitrary bytes: opened, and when it opens every tensor read. The last byte says how
// much of the file is cut off after the header was accepted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace {

// A file in memory, reached by a path as any other.
int memory_file() {
  static const int fd = ::memfd_create("fuzz", MFD_CLOEXEC);
  if (fd < 0) std::abort();
  return fd;
}

void write_file(int fd, const std::uint8_t* data, std::size_t size) {
  if (::ftruncate(fd, 0) != 0) std::abort();
  if (::pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int fd = memory_file();
  write_file(fd, data, size);
  try {
    const quire::SafetensorsFile file("/proc/self/fd/" + std::to_string(fd));
    const std::size_t cut = std::min<std::size_t>(data[size - 1] % 4, size);
    if (::ftruncate(fd, static_cast<off_t>(size - cut)) != 0) std::abort();
    for (const auto& [name, entry] : file.tensors()) {
      if (entry.bytes > size) std::abort();  // a tensor larger than its file was accepted
      std::vector<std::byte> contents(entry.bytes);
      file.read(name, 0, contents);
    }
  } catch (const quire::Error&) {
  }
  return 0;
}
