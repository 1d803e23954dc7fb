#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kvcache/ids.h"
#include "quire/request_output.h"
#include "quire/sampling_params.h"

namespace quire {

// The id of the request's first sequence. The sequences of its other outputs have the ids that follow.
using RequestId = SequenceId;

// What happened to one output of a request since the last call.
struct RequestUpdate {
  RequestId id = 0;
  const RequestOutput& request;    // all so far
  const CompletionOutput& output;  // of it, the one that this is about
  std::string_view new_text;       // of the output; never part of a character or of a stop string
  bool finished = false;           // the request has: no further update follows
  std::vector<float> logits;       // [n, vocab] of the next n prompt positions, where asked for
};

// So many requests wait that this one was not taken; later it may be. A server's HTTP 429.
class QueueFullError : public Error {
 public:
  enum class Limit : std::uint8_t { kRequests, kPromptTokens };

  QueueFullError(Limit limit, const std::string& message) : Error(message), limit_(limit) {}
  Limit limit() const { return limit_; }

 private:
  Limit limit_;
};

// What becomes of a prompt's hidden states, those after the final norm.
enum class Pooling : std::uint8_t {
  kNone,
  kLast,    // that of the last token
  kMean,    // the mean over all tokens
  kLogits,  // of the last token: the logits of SamplingParams::allowed_token_ids after it, in their order
};

// One prompt to be continued, or pooled.
struct EngineRequest {
  std::vector<TokenId> prompt;
  SamplingParams params;
  int priority = 0;               // lower first, under EngineConfig::scheduling_policy "priority"
  std::string cache_salt;         // only requests of equal salt share cached prefixes
  std::optional<double> timeout;  // seconds from submission, over 0, at most 1e9; unset: none
  bool prompt_logits = false;     // deliver the logits of every prompt position
  // Not kNone: nothing is generated; the request ends with its prompt and RequestOutput::embedding. It has
  // one output, without tokens.
  Pooling pooling = Pooling::kNone;
  int dimensions = 0;          // of the embedding: its first so many numbers; 0: all
  bool normalise = true;       // scaled to length 1, unless it is of logits
  std::size_t held_bytes = 0;  // that are kept for its answer: while it waits they count, as tokens do
  // Called in order, on the output thread: it may be slow at the cost of other outputs, never of the engine.
  // It must not wait for another request. What it throws ends the request, without another call. While the
  // engine closes, it must not submit.
  std::function<void(const RequestUpdate&)> on_update;
};

struct SamplingContext;
// Error that names what is wrong with a request whose parameters are right, and what would be right.
void validate_without_params(const EngineRequest& request, const SamplingContext& context);

}  // namespace quire
