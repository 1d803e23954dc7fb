#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/sampling_params.h"
#include "scheduler/constraint.h"
#include "tokenizer/tokenizer.h"

namespace quire {

// Ends one output's reasoning where it has as many tokens as it may: from there to the end of `budget.end` no
// other token is left. Before and behind that, `other` holds, which may be null. It depends on the output
// alone. The tokenizer outlives it.
class ThinkingLimit final : public Constraint {
 public:
  ThinkingLimit(ThinkingBudget budget, const Tokenizer& tokenizer, std::shared_ptr<Constraint> other);

  bool fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) override;
  std::vector<TokenId> forced(int most) override;

 private:
  enum class State { kBefore, kThinking, kEnding, kBehind };
  void take(TokenId token);
  void think();

  const ThinkingBudget budget_;
  const Tokenizer& tokenizer_;
  const std::shared_ptr<Constraint> other_;
  const std::vector<TokenId> end_;
  State state_ = State::kBefore;
  std::size_t num_taken_ = 0;   // tokens of the output
  std::size_t num_ending_ = 0;  // of those, in `end_`
  int num_thought_ = 0;
  std::string tail_;  // of the text: what may be a beginning of budget.begin, or of budget.end
};

}  // namespace quire
