#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/hooks.h"
#include "engine/sampling_context.h"
#include "quire/request_output.h"
#include "scheduler/scheduler.h"

namespace quire {

// Beam search, as the engine knows it: what src/beams implements, and src/engine/absent/beams.cpp where that
// part is left out.

struct SearchRules {
  int width = 1;
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kNo;
  int max_tokens = 1;
  int min_tokens = 0;             // before that many, no token of stop_ids
  std::vector<TokenId> stop_ids;  // each ends a text, as its last token
};

// A text that a search has found.
struct Hypothesis {
  std::vector<TokenId> tokens;
  double logprob = 0;
  double score = 0;  // logprob / its tokens ^ length_penalty
  FinishReason finish = FinishReason::kNone;
};

// What comes of a request's search.
struct SearchResult {
  SequenceId id = 0;  // of the first beam
  std::vector<Hypothesis> best;
  FinishReason reason = FinishReason::kNone;  // why it ended early, if it did
  std::string error;
  int num_cached_tokens = 0;
  CacheEnd cache_end = {};
  std::optional<TimePoint> first_token = {};  // when the first round had its results
};

// The requests in beam search, of which the base has none. Each beam is a sequence; when all of a search have
// their result, the next round of beams is forked from them. A search advances on its own among everything
// else that runs. Thread contract: the engine's thread.
class SearchRounds {
 public:
  virtual ~SearchRounds() = default;
  // Error as Scheduler::add's; after any exception abort_with_siblings must follow.
  virtual void add(const std::shared_ptr<const SequenceRequest>& /*first*/, SearchRules /*rules*/) {}
  virtual bool contains(SequenceId /*id*/) { return false; }
  // Takes what concerns beams out of the updates of a step that ended `at` then. Returns what has come of
  // searches that have ended, until the next call; one that fails ends alone.
  virtual std::span<SearchResult> take(std::vector<SequenceUpdate>& /*updates*/, TimePoint /*at*/) {
    return {};
  }
  // Ends the search that a sequence is of, with what it has found. False: it is of none.
  virtual bool end(SequenceId /*id*/, FinishReason /*reason*/, const std::string& /*error*/) { return false; }
};

class OutputProcessor;

// Both outlive it. fault: EngineHooks', or none.
std::unique_ptr<SearchRounds> make_search_rounds(Scheduler& scheduler, OutputProcessor& outputs,
                                                 EngineHooks::Fault fault);

// Of parameters with a beam_width. Error that begins with the name of the one that is wrong.
void validate_search(const SamplingParams& params, const SamplingContext& context);

}  // namespace quire
