#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/hooks.h"
#include "engine/sampling_context.h"
#include "scheduler/constraint.h"

namespace quire {

// Structured outputs, as the engine knows them: what src/engine/grammar implements with src/grammar, and
// src/engine/absent/grammar.cpp where that part is left out. Thread contract: any thread.
class GrammarCompiler {
 public:
  struct Result {
    MakeConstraint make = {};          // of the sequences of one request
    std::string error = {};            // where there is none: why
    bool is_request_at_fault = false;  // with it
  };
  // A source that somebody wants, which is given up once nobody holds it.
  struct Compilation {
    virtual ~Compilation() = default;
    virtual std::optional<Result> result() const = 0;  // none: it is not done
  };

  virtual ~GrammarCompiler() = default;  // gives up what is left
  virtual std::shared_ptr<const Compilation> compile(
      const std::shared_ptr<const StructuredOutputs>& source) = 0;
  // Called from now on with the seconds that each compilation took, on a thread of the compiler's.
  virtual void observe(std::function<void(double seconds)> observer) = 0;
  // What compiled sources take, with what was found out of their masks.
  virtual std::size_t bytes() = 0;
};

struct CompilerLimits {
  std::size_t kept_bytes = std::size_t{256} << 20;  // of grammars that no request has any more
  std::size_t bytes = std::size_t{2} << 30;         // of all, beyond which sources are refused
};
// What the context points to outlives it. `done` is called after each compilation, on a thread of the
// compiler's, and throws nothing. fault: EngineHooks', or none.
std::unique_ptr<GrammarCompiler> make_grammar_compiler(const SamplingContext& context,
                                                       std::function<void()> done, EngineHooks::Fault fault,
                                                       CompilerLimits limits = {});

// Of parameters with structured_outputs: what is wrong with them without a look at the source. Error that
// begins with the name of the one that is wrong.
void validate_structured_outputs(const SamplingParams& params, const SamplingContext& context);

}  // namespace quire
