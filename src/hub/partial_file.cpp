#include "hub/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <vector>

#include "base/log.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLockPause{100};
constexpr int kPausesUntilTold = 20;
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

std::string text_of(int error) { return std::generic_category().message(error); }

// Makes it, and the folder that it is in, where they are not there.
Descriptor open_file(const fs::path& path, mode_t mode) {
  const fs::path folder = path.parent_path();
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) fail("{}: cannot be created: {}", folder.string(), ec.message());
  Descriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, mode));
  if (!file) fail("{}: cannot be opened: {}", path.string(), text_of(errno));
  return file;
}

// Whether the path still leads to the open file, which another program may have removed.
bool is_at(int fd, const fs::path& path) {
  struct stat opened = {};
  struct stat found = {};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &found) == 0 && opened.st_ino == found.st_ino &&
         opened.st_dev == found.st_dev;
}

}  // namespace

FileLock::FileLock(const fs::path& path, const std::function<bool()>& stopped) {
  for (int pauses = 0;;) {
    file_ = open_file(path, 0664);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) {
      if (is_at(file_.get(), path)) return;
      continue;
    }
    if (const int error = errno; error != EWOULDBLOCK && error != EINTR)
      fail("{}: cannot be locked: {}; set HF_HUB_CACHE to a folder on a disk of this machine", path.string(),
           text_of(error));
    if (stopped()) throw Stopped();
    if (++pauses == kPausesUntilTold)
      log_warning("{}: waiting for another program's download", path.string());
    std::this_thread::sleep_for(kLockPause);
  }
}

// Of what an etag of a hub names: a SHA-256, or git's hash of a file, a SHA-1 with a head.
Digest PartialFile::new_digest() const {
  if (etag_.size() == 64) return Digest(Digest::Kind::kSha256);
  Digest digest(Digest::Kind::kSha1);
  const std::string head = format_text("blob {}", full_size_);
  digest.add({head.c_str(), head.size() + 1});  // with its zero byte
  return digest;
}

PartialFile::PartialFile(fs::path blob, std::string etag, std::uint64_t full_size,
                         std::function<void(std::int64_t)> on_change)
    : blob_(std::move(blob)),
      path_(blob_.string() + ".incomplete"),
      etag_(std::move(etag)),
      full_size_(full_size),
      on_change_(std::move(on_change)),
      digest_(new_digest()),
      file_(open_file(path_, 0666)) {
  take_up();
}

void PartialFile::take_up() {
  std::vector<char> buffer(kReadBytes);
  while (true) {
    const ssize_t got = ::read(file_.get(), buffer.data(), buffer.size());
    if (got < 0) fail("{}: cannot be read: {}", path_.string(), text_of(errno));
    if (got == 0) break;
    if (size_ + static_cast<std::uint64_t>(got) > full_size_) return restart();
    digest_.add({buffer.data(), static_cast<std::size_t>(got)});
    size_ += static_cast<std::uint64_t>(got);
    on_change_(got);
  }
}

void PartialFile::append(std::string_view bytes) {
  if (bytes.size() > full_size_ - size_) {
    restart();
    fs::remove(path_);
    fail("{}: the hub sent more than the {} bytes it had announced", path_.string(), full_size_);
  }
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t put = ::write(file_.get(), bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_writing(errno);
    done += static_cast<std::size_t>(put);
    size_ += static_cast<std::uint64_t>(put);
    on_change_(put);
  }
  digest_.add(bytes);
}

void PartialFile::fail_writing(int error) const {
  std::error_code ec;
  const fs::space_info space = fs::space(path_.parent_path(), ec);
  fail("{}: {}; {} more bytes are needed, {} are free (what has come is kept)", path_.string(),
       text_of(error), full_size_ - size_, ec ? 0 : space.available);
}

void PartialFile::restart() {
  if (::ftruncate(file_.get(), 0) != 0 || ::lseek(file_.get(), 0, SEEK_SET) != 0)
    fail("{}: cannot be emptied: {}", path_.string(), text_of(errno));
  on_change_(-static_cast<std::int64_t>(size_));
  size_ = 0;
  digest_ = new_digest();
}

bool PartialFile::finish() {
  QUIRE_CHECK(full());
  if (digest_.hex() != etag_) {
    restart();
    return false;
  }
  // On the disk before it has its name: what has it is whole, also after a power failure.
  if (::fsync(file_.get()) != 0) fail_writing(errno);
  std::error_code ec;
  fs::rename(path_, blob_, ec);
  if (ec) fail("{}: cannot be renamed: {}", path_.string(), ec.message());
  return true;
}

}  // namespace quire
