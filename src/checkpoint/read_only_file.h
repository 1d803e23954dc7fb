#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/descriptor.h"

namespace quire {

// A regular file, open for reading. It is not mapped: one that is cut short or fails to read while in use is
// an Error, not a signal. Const members may be called from several threads.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return size_; }  // as it was when it was opened
  // Reads bytes [offset, offset + dst.size()), which errors call `what`.
  void read(std::uint64_t offset, std::span<std::byte> dst, std::string_view what) const;

 private:
  std::string path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace quire
