#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "beams/beam_search.h"
#include "engine/output_processor.h"
#include "engine/search_rounds.h"

namespace quire {
namespace {

class BeamRounds final : public SearchRounds {
 public:
  BeamRounds(Scheduler& scheduler, OutputProcessor& outputs, EngineHooks::Fault fault)
      : scheduler_(scheduler), outputs_(outputs), fault_(std::move(fault)) {}

  void add(const std::shared_ptr<const SequenceRequest>& first, SearchRules rules) override {
    rules.max_tokens = scheduler_.add(first);
    Search search{.beams = BeamSearch(rules), .width = rules.width, .next = {}};
    search.result.id = first->id;
    begin_round(search);
    ended_.reserve(searches_.size() + 1);
    searches_.emplace(first->id, std::move(search));
  }

  bool contains(SequenceId id) override { return find(id) != searches_.end(); }

  std::span<SearchResult> take(std::vector<SequenceUpdate>& updates, TimePoint at) override {
    ended_.clear();
    if (searches_.empty()) return {};
    std::erase_if(updates, [&](SequenceUpdate& update) {
      const auto search = find(update.id);
      if (search == searches_.end()) return false;
      try {
        if (auto result = take(search, update, at)) ended_.push_back(std::move(*result));
      } catch (const std::exception& e) {
        ended_.push_back(close(search, FinishReason::kError, e.what()));
      }
      return true;
    });
    return ended_;
  }

  bool end(SequenceId id, FinishReason reason, const std::string& error) override {
    const auto found = find(id);
    if (found == searches_.end()) return false;
    outputs_.finish(close(found, reason, error));
    return true;
  }

 private:
  struct Search {
    BeamSearch beams;
    int width = 0;
    std::vector<std::vector<TokenLogprob>> next;  // by beam, as far as results are there
    std::size_t num_missing = 0;
    SearchResult result = {};  // as far as it is known
  };
  using Searches = std::map<SequenceId, Search>;  // by first beam

  Searches::iterator find(SequenceId id) {
    auto found = searches_.upper_bound(id);
    if (found == searches_.begin()) return searches_.end();
    --found;
    return id - found->first < static_cast<SequenceId>(found->second.width) ? found : searches_.end();
  }

  static void begin_round(Search& search) {
    search.num_missing = search.beams.beams().size();
    search.next.assign(search.num_missing, {});
  }

  std::optional<SearchResult> take(Searches::iterator found, SequenceUpdate& update, TimePoint at) {
    auto& [first, search] = *found;
    search.result.num_cached_tokens = update.num_cached_tokens;
    search.result.cache_end = update.cache_end;
    if (update.finish == FinishReason::kError)
      return close(found, FinishReason::kError,
                   update.error.empty() ? "the model's logits are not finite numbers" : update.error);
    QUIRE_CHECK(update.logprobs && search.num_missing > 0);
    if (!search.result.first_token) search.result.first_token = at;
    search.next[update.id - first] = std::move(update.logprobs->top);
    if (--search.num_missing > 0) return std::nullopt;
    if (fault_) fault_(EngineStage::kSearch, first);
    search.beams.advance(search.next);
    if (search.beams.beams().empty()) return close(found, FinishReason::kNone, {});
    std::vector<BeamFork> forks;
    for (const BeamSearch::Beam& beam : search.beams.beams())
      forks.push_back({first + beam.parent, beam.tokens.back()});
    scheduler_.fork_beams(first, forks);
    begin_round(search);
    return std::nullopt;
  }

  SearchResult close(Searches::iterator found, FinishReason reason, const std::string& error) {
    auto& [first, search] = *found;
    scheduler_.abort_with_siblings(first);
    SearchResult result = std::move(search.result);
    result.best = search.beams.best();
    result.reason = reason;
    result.error = error;
    searches_.erase(found);
    return result;
  }

  Scheduler& scheduler_;
  OutputProcessor& outputs_;
  EngineHooks::Fault fault_;
  Searches searches_;
  std::vector<SearchResult> ended_;  // with room for all: no update may be lost for want of memory
};

}  // namespace

std::unique_ptr<SearchRounds> make_search_rounds(Scheduler& scheduler, OutputProcessor& outputs,
                                                 EngineHooks::Fault fault) {
  return std::make_unique<BeamRounds>(scheduler, outputs, std::move(fault));
}

}  // namespace quire
