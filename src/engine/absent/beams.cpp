// An engine without beam search.
#include "base/error.h"
#include "engine/search_rounds.h"

namespace quire {

std::unique_ptr<SearchRounds> make_search_rounds(Scheduler& /*scheduler*/, OutputProcessor& /*outputs*/,
                                                 EngineHooks::Fault /*fault*/) {
  return std::make_unique<SearchRounds>();
}

void validate_search(const SamplingParams& params, const SamplingContext& /*context*/) {
  fail("beam_width is {}; this build has no beam search (QUIRE_BEAMS=OFF)", *params.beam_width);
}

}  // namespace quire
