#include "record/recorder.h"

#include <cerrno>
#include <cstring>
#include <random>

#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"

namespace quire {
namespace {

constexpr std::size_t kMostWaitingBytes = std::size_t{64} << 20;  // for the disk
constexpr std::chrono::seconds kFlushInterval{1};

std::uint64_t random_secret() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

bool write(std::FILE* file, std::span<const std::byte> bytes) {
  return std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() && std::fflush(file) == 0;
}

}  // namespace

Recorder::Recorder(RecordingInfo info, const std::string& path)
    : info_(std::move(info)),
      where_(path.empty() ? "recording in memory" : in_quotes(path)),
      start_(std::chrono::steady_clock::now()),
      writer_(info_.format(), random_secret()) {
  writer_.begin();
  if (path.empty()) return;
  file_ = open(path);
  if (!write(file_.get(), write_header(info_)))
    fail("--record {}: {}", in_quotes(path), std::strerror(errno));
  thread_ = std::thread([this] { write_chunks(); });
}

Recorder::~Recorder() {
  handle([this](SchedulerObserver&) { writer_.end(); });
  if (!thread_.joinable()) return;
  change_and_wake(mutex_, wake_, [this] { closing_ = true; });
  thread_.join();
}

Recorder::File Recorder::open(const std::string& path) {
  File file(std::fopen(path.c_str(), "wb"));
  if (!file) fail("a recording cannot be written to {}: {}", in_quotes(path), std::strerror(errno));
  return file;
}

void Recorder::save(const std::string& path) {
  const File file = open(path);
  const std::lock_guard lock(mutex_);
  RecordingInfo info = info_;
  info.from_start = !dropped_;
  info.num_in_flight = chunks_.empty() ? writer_.num_in_flight() : chunks_.front().num_in_flight;
  bool written = write(file.get(), write_header(info));
  for (const Chunk& chunk : chunks_) written = written && write(file.get(), frame_chunk(chunk.bytes));
  if (!written || !write(file.get(), frame_chunk(writer_.chunk())))
    fail("a recording cannot be written to {}: {}", in_quotes(path), std::strerror(errno));
}

void Recorder::handle(const Event& event) {
  using std::chrono::microseconds;
  const std::lock_guard lock(mutex_);
  if (broken_) return;
  const auto time = std::chrono::steady_clock::now() - start_;
  writer_.set_time(static_cast<std::uint64_t>(std::chrono::duration_cast<microseconds>(time).count()));
  try {
    event(writer_);
    if (writer_.chunk().size() >= EventWriter::kChunkBytes) seal();
  } catch (const std::exception& e) {  // no memory, say
    writer_.take_back();
    give_up(what_of(e));
  }
}

void Recorder::give_up(const char* why) {
  broken_ = true;
  log_warning("{}: {}; the recording ends", where_, why);
}

// The chunk in the making is whole.
void Recorder::seal() {
  const auto chunk = writer_.chunk();
  chunks_.push_back({{chunk.begin(), chunk.end()}, writer_.num_in_flight()});
  num_bytes_ += chunk.size();
  writer_.begin();
  if (file_) {
    wake_.notify_one();
    if (num_bytes_ > kMostWaitingBytes && !broken_) give_up("the disk is too slow");
    return;
  }
  for (; num_bytes_ > kMemoryBytes; chunks_.pop_front(), dropped_ = true)
    num_bytes_ -= chunks_.front().bytes.size();
}

void Recorder::write_chunks() {
  name_thread("quire-record");
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    wake_.wait_for(lock, kFlushInterval, [this] { return closing_ || broken_ || !chunks_.empty(); });
    last = closing_ || broken_;
    try {
      if ((chunks_.empty() || last) && !writer_.is_empty()) seal();
      std::deque<Chunk> chunks;
      chunks.swap(chunks_);
      num_bytes_ = 0;
      lock.unlock();
      for (const Chunk& chunk : chunks)
        if (!write(file_.get(), frame_chunk(chunk.bytes))) fail("{}", std::strerror(errno));
      lock.lock();
    } catch (const std::exception& e) {
      if (!lock.owns_lock()) lock.lock();
      last = true;
      give_up(what_of(e));
    }
  }
}

}  // namespace quire
