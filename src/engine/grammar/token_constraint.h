#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "quire/sampling_params.h"
#include "scheduler/constraint.h"

namespace quire {

// A compiled grammar and where in an output it begins to hold.
struct OutputGrammar {
  std::shared_ptr<const grammar::Grammar> grammar;
  std::string free_until;          // as StructuredOutputs'
  std::optional<TokenId> opening;  // the token of free_after
  bool begins_free = false;        // whatever comes first
};
// What holds of an output under that grammar. free_after is free where it is no token.
OutputGrammar output_grammar(std::shared_ptr<const grammar::Grammar> grammar,
                             const StructuredOutputs& source);

// Holds one output to a grammar.
class TokenConstraint final : public Constraint {
 public:
  explicit TokenConstraint(OutputGrammar grammar)
      : grammar_(std::move(grammar)), is_free_(grammar_.begins_free) {}

  bool fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) override;
  std::vector<TokenId> forced(int most) override;

 private:
  void take(TokenId token);
  void take_free(TokenId token);

  const OutputGrammar grammar_;
  std::optional<grammar::Matcher> matcher_;  // from the first mask on: to make it may take time
  std::size_t num_taken_ = 0;                // tokens of the output
  bool is_free_;
  std::string tail_;  // of the free text, which may be a beginning of free_until
};

}  // namespace quire
