// An engine without structured outputs.
#include "base/error.h"
#include "engine/structured_outputs.h"

namespace quire {

std::unique_ptr<GrammarCompiler> make_grammar_compiler(const SamplingContext& /*context*/,
                                                       std::function<void()> /*done*/,
                                                       EngineHooks::Fault /*fault*/,
                                                       CompilerLimits /*limits*/) {
  return nullptr;
}

void validate_structured_outputs(const SamplingParams& /*params*/, const SamplingContext& /*context*/) {
  fail("structured_outputs are not in this build (QUIRE_GRAMMAR=OFF)");
}

}  // namespace quire
