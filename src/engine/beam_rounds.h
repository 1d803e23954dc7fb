#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/beam_search.h"
#include "engine/hooks.h"
#include "engine/output_processor.h"
#include "scheduler/scheduler.h"

namespace quire {

// The requests in beam search. Each beam is a sequence; when all of a search have their result, the next
// round of beams is forked from them. A search advances on its own among everything else that runs. Thread
// contract: the engine's thread.
class BeamRounds {
 public:
  using Fault = std::function<void(EngineStage, SequenceId)>;  // EngineHooks::fault, or none

  BeamRounds(Scheduler& scheduler, OutputProcessor& outputs, Fault fault)
      : scheduler_(scheduler), outputs_(outputs), fault_(std::move(fault)) {}

  // What the scheduler refuses ends the request.
  void add(const std::shared_ptr<const SequenceRequest>& first, BeamSearch::Rules rules);
  bool contains(SequenceId id) { return find(id) != searches_.end(); }
  // Takes what concerns beams out of the updates of a step that ended `at` then. Returns what has come of
  // searches that have ended; one that fails ends alone.
  std::vector<SearchResult> take(std::vector<SequenceUpdate>& updates, TimePoint at);
  // Ends the search that a sequence is of, with what it has found. False: it is of none.
  bool end(SequenceId id, FinishReason reason, const std::string& error);

 private:
  struct Search {
    BeamSearch beams;
    int width = 0;
    std::vector<std::vector<TokenLogprob>> next;  // by beam, as far as results are there
    std::size_t num_missing = 0;
    int num_cached_tokens = 0;
    std::optional<TimePoint> first_token = {};
  };
  using Searches = std::map<SequenceId, Search>;  // by first beam

  Searches::iterator find(SequenceId id);
  std::optional<SearchResult> take(Searches::iterator found, SequenceUpdate& update, TimePoint at);
  SearchResult close(Searches::iterator found, FinishReason reason, const std::string& error);
  static void begin_round(Search& search);

  Scheduler& scheduler_;
  OutputProcessor& outputs_;
  Fault fault_;
  Searches searches_;
};

}  // namespace quire
