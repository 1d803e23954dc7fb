#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvcache/ids.h"
#include "kvcache/kv_cache.h"
#include "quire/request_output.h"
#include "scheduler/constraint.h"
#include "scheduler/step_plan.h"

namespace quire {

// What the engine hands to the scheduler: ids, no text. Its sequences share it.
struct SequenceRequest {
  SequenceId id = 0;    // never used before
  int num_outputs = 1;  // its sequences: their ids and their seeds follow each other
  // The first id of the sequences that continue the same prompt, whose ids follow each other and which are
  // added one after the other. One that is admitted while another runs shares its blocks. 0: there is no
  // other.
  SequenceId first_sibling = 0;
  std::vector<TokenId> prompt;
  SamplingState sampling;  // its stop_ids (EOS unless ignored, stop tokens) also end the sequence
  // Over 0: the first beam of a search of that width. Whenever a beam has computed its last token it is held,
  // until Scheduler::fork_beams says what comes of it. It is its own first sibling; its beams have the ids
  // from its own on.
  int beam_width = 0;
  MakeConstraint make_constraint;  // empty: its outputs are not constrained
  // Whether tokens of which there is no choice may be appended without being sampled.
  bool may_jump = false;
  std::size_t held_bytes = 0;  // of what it was made of, beside the prompt
  int max_tokens = 16;
  int min_tokens = 0;
  // Of the first sequence; others have kLast. kAll, kLogprobs: these are wanted of every prompt position;
  // then no prefix of it is taken from the cache. Nor is it for kHiddenMean. With that, kLastHidden or
  // kLastLogits the sequence ends with its prompt, and has no sibling.
  OutputKind prompt_output = OutputKind::kLast;
  std::string cache_salt;             // only sequences of equal salt share cached prefixes
  int priority = 0;                   // lower first, where the policy is to look at it
  std::optional<TimePoint> deadline;  // by which it is to end

  // What it holds while it waits is about so many bytes for each token that it counts as.
  static constexpr std::int64_t kBytesPerQueuedToken = 8;
  // What it counts as: its prompt once, what its outputs hold beside it, and the ids that its lists name.
  std::int64_t num_queued_tokens() const {
    constexpr std::size_t kTokensPerOutput = 128;
    constexpr std::size_t kTokensPerNamedId = 8;
    const auto num_more = static_cast<std::size_t>(std::max(num_outputs, beam_width) - 1);
    return static_cast<std::int64_t>(prompt.size() + num_more * kTokensPerOutput +
                                     sampling.num_named_ids() * kTokensPerNamedId +
                                     held_bytes / static_cast<std::size_t>(kBytesPerQueuedToken));
  }
};

enum class SequenceState : std::uint8_t {
  kWaiting,   // holds no seat and no block of the cache; a beam that is held besides is parked
  kRunning,   // holds a seat and blocks
  kRetiring,  // has ended, but steps in flight still use its seat and blocks
};

// The scheduler's book of one sequence. A step in flight is one planned and not yet applied.
struct Sequence {
  explicit Sequence(SequenceBlocks empty) : blocks(std::move(empty)) {}

  SequenceId id = 0;
  std::shared_ptr<const SequenceRequest> request;
  int index = 0;                    // among the sequences of its request
  int priority = 0;                 // the request's, where the policy looks at it
  std::uint64_t arrival = 0;        // counts up
  std::vector<TokenId> own_tokens;  // see tokens()
  int num_prompt = 0;
  int max_length = 0;  // tokens it ends at
  // Samples in flight: tokens that exist but are not known. What is pooled counts as one.
  int num_pending = 0;
  int num_in_flight = 0;  // steps
  SequenceState state = SequenceState::kWaiting;
  int seat = -1;
  bool started = false;           // a step was planned since it got its seat
  bool has_sampled = false;       // since it got its seat
  bool yielding = false;          // planned no more until its steps are applied, then preempted
  bool suspect = false;           // a step of it was lost, and it got no token since: planned alone
  bool held = false;              // a beam that has its result: planned no more
  int num_cached_tokens = -1;     // prompt tokens found cached at first admission; -1: not yet admitted
  CacheEnd cache_end;             // why there were no more then
  std::uint64_t prompt_step = 0;  // the step that computes the end of its prompt; 0: before it got its seat
  int state_branch = 0;           // tokens that the cache knew when it was admitted, whole state intervals
  int num_prompt_logits = 0;      // prompt positions whose output was handed out
  SequenceBlocks blocks;
  std::shared_ptr<Constraint> constraint;  // once there was a token to be sampled under it

  // Prompt and output, as far as known. Until there is an output, the request's prompt is all.
  std::span<const TokenId> tokens() const { return own_tokens.empty() ? request->prompt : own_tokens; }
  void append(TokenId token) {
    if (own_tokens.empty()) own_tokens = request->prompt;
    own_tokens.push_back(token);
  }

  std::pair<int, std::uint64_t> precedence() const { return {priority, arrival}; }  // lower first
  int length() const { return static_cast<int>(tokens().size()) + num_pending; }
  int num_planned() const { return blocks.num_tokens; }  // in flight or done
  int num_unplanned() const { return length() - num_planned(); }
  bool complete() const { return length() >= max_length; }  // its last token is known or in flight
  int num_output() const { return length() - num_prompt; }
  bool is_beam() const { return request->beam_width > 0; }
  // Whether it is held and had to give its blocks to another beam of its search.
  bool is_stripped() const { return held && num_planned() == 0; }
  OutputKind prompt_output() const { return index == 0 ? request->prompt_output : OutputKind::kLast; }
  bool is_pooled() const { return quire::is_pooled(prompt_output()); }
  // Whether some of its tokens may be computed already, for others.
  bool may_share() const { return !needs_every_position(prompt_output()); }

  // How many tokens its span in that step may have; 0: it is not to be planned.
  int span_limit(std::uint64_t step) const;
  // Its next span, without the blocks that this takes.
  SequencePlan plan_span(int num_tokens) const;
  // What the token just learned ends, if anything.
  FinishReason finish_reason() const;
};

struct Precedes {
  bool operator()(const Sequence* a, const Sequence* b) const { return a->precedence() < b->precedence(); }
};

}  // namespace quire
