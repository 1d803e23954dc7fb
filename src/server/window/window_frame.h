#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "record/recording.h"
#include "scheduler/step_plan.h"
#include "server/window.h"

namespace quire::server {

// What a window shows of one moment. Times are seconds since the watching, or the recording, began.

// A block of the cache or of host memory, or a slot of fixed states.
struct WindowBlock {
  int holders = 0;         // 0: it is free
  bool is_cached = false;  // a prompt that begins alike could find it
  int lane = 0;            // of the owner's block table
  SequenceId owner = 0;    // the first of those that hold it; 0: steps in flight alone do

  bool operator==(const WindowBlock&) const = default;
};

struct WindowSequence {
  enum class State : std::uint8_t { kWaiting, kPrompt, kDecoding, kPreempted, kEnded };
  static constexpr std::array<const char*, 5> kStates = {"waiting", "prompt", "decoding", "preempted",
                                                         "ended"};
  struct Moment {
    double time = 0;
    State state = State::kWaiting;  // from then on

    bool operator==(const Moment&) const = default;
  };

  State state = State::kWaiting;
  std::string end;             // with kEnded: why
  SequenceId request = 0;      // the first sequence of its request
  int num_prompt = 0;          // tokens
  int num_tokens = 0;          // known
  int num_computed = 0;        // planned, in flight or done
  int num_cached = 0;          // of the prompt, found in the cache
  int max_tokens = 0;          // it ends at
  int num_saved = 0;           // blocks in host memory
  std::vector<BlockId> table;  // [rows, lanes]
  std::vector<Moment> life;
  std::vector<TokenId> tail;  // its last tokens, where they are to be shown; as text:
  std::string text;
  double added = -1;       // below 0: before the watching began; not sent, like the next one
  double last_token = -1;  // below 0: there was none

  bool operator==(const WindowSequence&) const = default;
};

struct WindowStep {
  struct Span {
    SequenceId sequence = 0;
    int num_tokens = 0;
    bool is_prompt = false;  // else a decode

    bool operator==(const Span&) const = default;
  };

  std::uint64_t id = 0;
  int num_tokens = 0;
  std::vector<Span> spans;
  std::vector<Decision> decisions;
  int num_copies = 0, num_saves = 0, num_restores = 0;  // of blocks

  bool operator==(const WindowStep&) const = default;
};

// What a step that was applied took, and had to read.
struct WindowApplied {
  double seconds = 0;
  int num_tokens = 0;
  std::int64_t num_blocks = 0;  // that its sequences attend to, of each sequence anew

  bool operator==(const WindowApplied&) const = default;
};

// What happened in one second.
struct WindowSecond {
  int output_tokens = 0, prompt_tokens = 0;  // sampled; computed of prompts, and again after a preemption
  double first_token = -1;                   // mean seconds until one; below 0: there was none
  double between_tokens = -1;                // mean seconds
  double cache_use = 0;                      // share of the blocks, at its end
  double hit_rate = -1;                      // of the tokens of admitted prompts; below 0: there were none
  double busy = 0;                           // share of it in which a step was under way

  bool operator==(const WindowSecond&) const = default;
};

// What was done with a block within the last second.
struct WindowMark {
  enum class Kind : std::uint8_t { kCopied, kSaved, kRestored };
  BlockId block = 0;
  Kind kind = Kind::kCopied;
  std::uint64_t step = 0;
  double time = 0;  // not sent

  bool operator==(const WindowMark&) const = default;
};

struct WindowEvent {
  std::uint64_t step = 0;
  Decision decision;

  bool operator==(const WindowEvent&) const = default;
};

struct WindowFrame {
  double time = 0;
  std::vector<WindowBlock> blocks, host_blocks, slots;
  std::map<SequenceId, WindowSequence> sequences;  // those that exist, and some that ended last
  WindowStep step;                                 // the last one planned
  WindowApplied applied;                           // the last one that was: of one before `step`
  std::vector<WindowEvent> events;                 // the last admissions and preemptions
  std::vector<WindowMark> marks;
  std::map<std::int64_t, WindowSecond> seconds;  // the last ones, by number
  double cost = 0;                               // seconds that the making of it took; not sent
};

// What turns the JSON of one frame (docs/window.md) into that of another: a JSON merge patch (RFC 7386).
// before: null for the patch of an empty object, which is the frame's JSON itself (frame_patch.cpp).
std::string frame_patch(const WindowFrame* before, const WindowFrame& now);

// A frame's "about", which does not change: {"about":{...}}. num_steps: of a recording; 0: it is live.
std::string about_patch(const SchedulerConfig& config, const WindowOptions& options, std::uint64_t num_steps,
                        double seconds);

}  // namespace quire::server
