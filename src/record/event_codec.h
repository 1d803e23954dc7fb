#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "record/bytes.h"
#include "scheduler/scheduler.h"

namespace quire {

// What is the same for all events of a recording.
struct EventFormat {
  int block_size = 16;
  // Tokens stand as they are; else in their places are 0, kStopToken for one that ended its sequence, and for
  // the last one of a row the row's name.
  bool with_tokens = false;

  static constexpr TokenId kStopToken = 1;
};

// Writes what a scheduler does, some 3 bytes for a sequence that decodes in a step: for each event its kind,
// the microseconds since the one before, and its fields in the order of the walks and of
// RecordingReader's functions. begin() starts a chunk, whose times need no chunk before it.
class EventWriter final : public SchedulerObserver {
 public:
  // secret: without it nothing can be learnt from the name of a row or a text, but that equal ones have equal
  // names.
  EventWriter(const EventFormat& format, std::uint64_t secret) : format_(format), secret_(secret) {
    out_.bytes.reserve(kChunkBytes);
  }

  static constexpr std::size_t kChunkBytes = 64 << 10;  // from which on a chunk is to be ended

  // The time of the events that follow, in microseconds since the recording began; never less than before.
  void set_time(std::uint64_t time) { time_ = time; }
  std::span<const std::byte> chunk() const { return out_.bytes; }
  bool is_empty() const { return out_.bytes.size() == begin_; }  // no event stands in the chunk
  int num_in_flight() const { return num_at_begin_; }            // steps, where it begins
  void begin();                                                  // a new chunk; what chunk() was is gone
  void end();                                                    // nothing follows: the recording is whole
  // Takes the last event out of the chunk, which may be there in part; no other may follow.
  void take_back() { out_.bytes.resize(event_); }

  void added(const SequenceRequest& request) override;
  void aborted(SequenceId id) override;
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override;
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override;
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override;
  void forked(SequenceId first, std::span<const BeamFork> forks) override;
  void lost_steps(std::span<const SequenceUpdate> updates) override;

 private:
  // A sequence's tokens as far as they are known.
  struct Chain {
    std::uint64_t rows = 0;     // stands for all whole rows
    std::vector<TokenId> tail;  // behind them, fewer than a row
  };

  TokenId append(Chain& chain, TokenId token) const;
  std::uint64_t name(std::string_view text) const;
  void kind(std::uint8_t kind);
  void token(Chain& chain, TokenId token, FinishReason finish);
  void result(const SequenceResult& result, const SequenceUpdate* update);

  EventFormat format_;
  std::uint64_t secret_;
  ByteWriter out_;
  std::size_t begin_ = 0, event_ = 0;         // where in it the first one begins, and the last
  int num_in_flight_ = 0, num_at_begin_ = 0;  // steps: now, and when the chunk began
  std::uint64_t time_ = 0;
  std::uint64_t last_time_ = 0;
  std::map<SequenceId, Chain> chains_;  // of all that are not known to have ended
};

// Writes a plan: of two that are equal, equal bytes. Tokens and what sampling needs are not in them.
void write_plan(ByteWriter& out, const StepPlan& plan);

}  // namespace quire
