#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "record/recording.h"

namespace quire {

// Records what a scheduler does: into a file, of which a crash loses the last second, or only the last
// kMemoryBytes of it in memory.
//
// Threads: any may call save; what a SchedulerObserver has is the scheduler's. A thread of its own writes the
// file, so that a slow disk does not hold up a step.
class Recorder final : public SchedulerObserver {
 public:
  static constexpr std::size_t kMemoryBytes = std::size_t{4} << 20;

  // path: empty for none. Error where it cannot be written. Where that fails later, or there is no memory, a
  // warning says so, and the recording ends.
  Recorder(RecordingInfo info, const std::string& path);
  ~Recorder() override;

  // Writes what is in memory to a file. Error where it cannot be written.
  void save(const std::string& path);
  bool has_file() const { return file_ != nullptr; }

  void handle(const Event& event) override;  // by which alone it is told

 private:
  struct Chunk {
    std::vector<std::byte> bytes;
    int num_in_flight = 0;  // steps, where it begins
  };
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;

  static File open(const std::string& path);
  void give_up(const char* why);
  void seal();
  void write_chunks();

  RecordingInfo info_;
  std::string where_;  // it goes, in words
  File file_;
  std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  EventWriter writer_;         // this and what follows: guarded by mutex_
  std::deque<Chunk> chunks_;   // whole ones: that are kept, or are to be written
  std::size_t num_bytes_ = 0;  // of them
  bool dropped_ = false;       // some are gone
  bool broken_ = false;        // nothing is recorded any more
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace quire
