// An engine without beam search.
#include "base/error.h"
#include "engine/search_rounds.h"

namespace quire {
namespace {

class NoSearches : public SearchRounds {
 public:
  void add(const std::shared_ptr<const SequenceRequest>& /*first*/, SearchRules /*rules*/) override {
    QUIRE_CHECK(false, "a search was not refused");
  }
  bool contains(SequenceId /*id*/) override { return false; }
  std::vector<SearchResult> take(std::vector<SequenceUpdate>& /*updates*/, TimePoint /*at*/) override {
    return {};
  }
  bool end(SequenceId /*id*/, FinishReason /*reason*/, const std::string& /*error*/) override {
    return false;
  }
};

}  // namespace

std::unique_ptr<SearchRounds> make_search_rounds(Scheduler& /*scheduler*/, OutputProcessor& /*outputs*/,
                                                 decltype(EngineHooks::fault) /*fault*/) {
  return std::make_unique<NoSearches>();
}

void validate_search(const SamplingParams& params, const SamplingContext& /*context*/) {
  fail("beam_width is {}; this build has no beam search (QUIRE_BEAMS=OFF)", *params.beam_width);
}

}  // namespace quire
