#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "beams/beam_search.h"
#include "engine/output_processor.h"
#include "engine/search_rounds.h"

namespace quire {

class BeamRounds : public SearchRounds {
 public:
  BeamRounds(Scheduler& scheduler, OutputProcessor& outputs, EngineHooks::Fault fault)
      : scheduler_(scheduler), outputs_(outputs), fault_(std::move(fault)) {}

  void add(const std::shared_ptr<const SequenceRequest>& first, SearchRules rules) override;
  bool contains(SequenceId id) override { return find(id) != searches_.end(); }
  std::vector<SearchResult> take(std::vector<SequenceUpdate>& updates, TimePoint at) override;
  bool end(SequenceId id, FinishReason reason, const std::string& error) override;

 private:
  struct Search {
    BeamSearch beams;
    int width = 0;
    std::vector<std::vector<TokenLogprob>> next;  // by beam, as far as results are there
    std::size_t num_missing = 0;
    SearchResult result = {};  // as far as it is known
  };
  using Searches = std::map<SequenceId, Search>;  // by first beam

  Searches::iterator find(SequenceId id);
  std::optional<SearchResult> take(Searches::iterator found, SequenceUpdate& update, TimePoint at);
  SearchResult close(Searches::iterator found, FinishReason reason, const std::string& error);
  static void begin_round(Search& search);

  Scheduler& scheduler_;
  OutputProcessor& outputs_;
  EngineHooks::Fault fault_;
  Searches searches_;
};

}  // namespace quire
