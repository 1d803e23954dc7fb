#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "quire/cache_end.h"
#include "quire/logprobs.h"

namespace quire {

enum class FinishReason { kNone, kStop, kLength, kAbort, kTimeout, kError };

// "stop" (EOS, stop token or stop string), "length" (max_tokens, or the end of the context or of the KV
// cache), "abort", "timeout", "error"; "" for kNone.
std::string_view to_string(FinishReason reason);

using TimePoint = std::chrono::steady_clock::time_point;

// When what happened to an output, as the engine saw it; unset: it has not.
struct OutputTimes {
  std::optional<TimePoint> scheduled;    // its first step was planned
  std::optional<TimePoint> first_token;  // of a beam search: of any beam
  std::optional<TimePoint> last_token;   // of those it has
  std::optional<TimePoint> finished;
};

// One continuation of a prompt, as far as it has come.
struct CompletionOutput {
  int index = 0;
  std::vector<std::int32_t> token_ids;
  std::string text;                          // of token_ids, stop strings cut
  std::vector<PositionLogprobs> logprobs;    // of token_ids, where asked for
  std::optional<double> cumulative_logprob;  // their sum
  std::optional<double> score;               // what a beam search has ranked it by
  FinishReason finish_reason = FinishReason::kNone;
  // The stop string or the token of stop_token_ids that finish_reason kStop is for; neither: EOS.
  std::variant<std::monostate, std::int32_t, std::string> stop_reason;
  std::string error;  // why, when finish_reason is kError or kTimeout
  // With kError: what it asks of sampling rules out every token, or cannot be done.
  bool is_request_at_fault = false;
  OutputTimes times;
  int num_preemptions = 0;  // after which it ran again

  bool finished() const { return finish_reason != FinishReason::kNone; }
};

// What a request has produced so far.
struct RequestOutput {
  std::vector<std::int32_t> prompt_token_ids;
  // Of the prompt's tokens from the second on, where asked for; of all of them once there is an output token.
  std::vector<PositionLogprobs> prompt_logprobs;
  std::vector<CompletionOutput> outputs;  // SamplingParams::n of them, by index
  // Of a request for one that has ended with kStop: [hidden_size], of length 1, unless it asks for another
  // form. It has one output, without tokens.
  std::vector<float> embedding;
  int num_cached_tokens = 0;  // prompt tokens whose KV came from the prefix cache
  CacheEnd cache_end;         // and why not more
  TimePoint arrival;          // when it was submitted
};

}  // namespace quire
