#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "base/digest.h"
#include "base/error.h"

namespace quire {

// A file held by flock, as huggingface_hub holds its own, while the object lives. Waits for whoever has it.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, const std::function<bool()>& stopped);

 private:
  Descriptor file_;
};

// A blob on its way: BLOB.incomplete, which stays when the object goes, so that it can be gone on with. Its
// hash is added up as its bytes come. For one thread, which holds the blob's lock.
class PartialFile {
 public:
  // `etag` is the SHA-256 of the bytes (64 digits) or git's hash of a blob of them (40). on_change: bytes
  // that have come, or were dropped.
  PartialFile(std::filesystem::path blob, std::string etag, std::uint64_t full_size,
              std::function<void(std::int64_t)> on_change);
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  std::uint64_t size() const { return size_; }
  bool full() const { return size_ == full_size_; }
  // Error when that is more than the file has, which removes it, and when the disk does not take it.
  void append(std::string_view bytes);
  void restart();  // empty again
  // When full: makes it the blob. False: the hash is wrong, and the file is empty again.
  bool finish();

 private:
  Digest new_digest() const;
  void take_up();  // what an earlier download left
  [[noreturn]] void fail_writing(int error) const;

  const std::filesystem::path blob_;
  const std::filesystem::path path_;
  const std::string etag_;
  const std::uint64_t full_size_;
  const std::function<void(std::int64_t)> on_change_;
  Digest digest_;
  Descriptor file_;
  std::uint64_t size_ = 0;
};

}  // namespace quire
