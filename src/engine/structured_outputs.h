#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/hooks.h"
#include "engine/sampling_context.h"
#include "scheduler/constraint.h"

namespace quire {

// Structured outputs, as the engine knows them: what src/engine/grammar implements with src/grammar, and
// src/engine/absent/grammar.cpp where that part is left out.

// A source that is compiled, or will be; given up when nobody holds it any more. Thread contract: any thread.
class Compilation {
 public:
  struct Result {
    MakeConstraint make = {};  // of a sequence
    std::string error = {};    // not empty: there is none, since the request is wrong
  };

  virtual ~Compilation() = default;
  // Calls `done` with the result, at once or on a thread of the compiler's; not at all if it is given up.
  virtual void then(std::function<void(const Result&)> done) = 0;
};

// Thread contract: any thread.
class GrammarCompiler {
 public:
  virtual ~GrammarCompiler() = default;  // gives up what is left
  virtual std::shared_ptr<Compilation> compile(const std::shared_ptr<const StructuredOutputs>& source) = 0;
  // Called from now on with the seconds that each compilation took, on a thread of the compiler's.
  virtual void observe(std::function<void(double seconds)> observer) = 0;
};

// What the context points to outlives it. fault: EngineHooks::fault, or none.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const SamplingContext& context,
                                                       decltype(EngineHooks::fault) fault);

// Of parameters with structured_outputs: what is wrong with them without a look at the source. Error that
// begins with the name of the one that is wrong.
void validate_structured_outputs(const SamplingParams& params, const SamplingContext& context);

}  // namespace quire
