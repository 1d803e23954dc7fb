#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_fwd.h"
#include "record/event_codec.h"

namespace quire {

// What a recording is of. docs/recording.md says what stands in a file.
struct RecordingInfo {
  std::string model, device, dtype;  // as they are to be shown
  std::int64_t started = 0;          // seconds since 1970
  bool with_tokens = false;
  bool from_start = true;  // else it is the last part of what was, and has no beginning to be done again from
  int num_in_flight = 0;   // steps, where it begins
  SchedulerConfig scheduler;  // but for on_plan, the observers and the seed of hashes

  EventFormat format() const { return {scheduler.layout.block_size, with_tokens}; }
};

// A scheduler's numbers and flags as an object; the other way, Error where it is none.
OrderedJson to_json(const SchedulerConfig& config);
SchedulerConfig read_scheduler_config(const Json& object);

inline constexpr std::string_view kRecordingMagic = "QUIREREC";
inline constexpr int kRecordingVersion = 1;

// A file's first bytes: the magic, the size of what follows (uint32), a JSON object.
std::vector<std::byte> write_header(const RecordingInfo& info);
// A chunk as it stands in a file: its size and its checksum (uint32 each, XXH32), its bytes.
std::vector<std::byte> frame_chunk(std::span<const std::byte> chunk);

// A recording as it lies in a file. What the file ends in the middle of is left out.
class Recording {
 public:
  // Error where it is none, is of another version, or cannot be read.
  explicit Recording(const std::filesystem::path& path);
  Recording(std::string bytes, const std::string& where);

  const RecordingInfo& info() const { return info_; }
  // Tells `to` of all events. Returns whether the recording is whole: it has an end that was written. Error
  // where a chunk is broken.
  bool read(SchedulerObserver& to) const;

 private:
  friend class RecordingReader;

  std::string bytes_;
  std::string where_;
  std::size_t first_chunk_ = 0;
  RecordingInfo info_;
};

// Reads a recording, which outlives it, event by event.
class RecordingReader {
 public:
  explicit RecordingReader(const Recording& recording)
      : recording_(recording),
        format_(recording.info_.format()),
        at_(recording.first_chunk_),
        in_flight_(static_cast<std::size_t>(recording.info_.num_in_flight)) {}

  // Tells `to` of the next event. False: there is none. Error where a chunk is broken.
  bool next(SchedulerObserver& to);
  // Of the last event, also while it is told: microseconds, and seconds.
  std::uint64_t time() const { return time_; }
  double seconds() const { return static_cast<double>(time()) * 1e-6; }
  bool ended() const { return ended_; }  // the recording is whole

 private:
  // Empty: there is none that is whole. Error where it is not what was written.
  std::span<const std::byte> next_chunk();
  // What an EventWriter has written (event_codec.cpp). Error where it is no such thing.
  void read_event(SchedulerObserver& to);
  void read_added(SchedulerObserver& to);
  void read_planned(SchedulerObserver& to, bool has_plan);
  void read_applied(SchedulerObserver& to);
  void read_foreseen(SchedulerObserver& to);
  void read_forked(SchedulerObserver& to);
  TokenId read_token(FinishReason finish);

  const Recording& recording_;
  const EventFormat format_;
  std::size_t at_;     // the next chunk
  ByteReader in_{{}};  // this one's
  std::uint64_t time_ = 0;
  bool ended_ = false;
  std::deque<std::vector<SequenceId>> in_flight_;  // of each step; empty: they are not known
};

}  // namespace quire
