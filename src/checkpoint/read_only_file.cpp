#include "checkpoint/read_only_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"

namespace quire {

ReadOnlyFile::ReadOnlyFile(const std::filesystem::path& path) : path_(path.string()) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer; regular files ignore it.
  file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!file_) fail("{}: cannot open ({})", path_, std::strerror(errno));
  if (::fstat(file_.get(), &status) != 0) fail("{}: cannot read ({})", path_, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) fail("{}: not a regular file", path_);
  size_ = static_cast<std::uint64_t>(status.st_size);
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
}

void ReadOnlyFile::read(std::uint64_t offset, std::span<std::byte> dst, std::string_view what) const {
  while (!dst.empty()) {
    const ssize_t n = ::pread(file_.get(), dst.data(), dst.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      fail("{}: cannot read {} at byte {} ({})", path_, in_quotes(what), offset, std::strerror(errno));
    if (n == 0) fail("{}: cut short while reading {}: it ends at byte {}", path_, in_quotes(what), offset);
    dst = dst.subspan(n);
    offset += static_cast<std::uint64_t>(n);
  }
}

}  // namespace quire
