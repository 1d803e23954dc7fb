#include "engine/grammar/token_constraint.h"

#include "base/error.h"
#include "base/json.h"

namespace quire {

OutputGrammar output_grammar(std::shared_ptr<const grammar::Grammar> grammar,
                             const StructuredOutputs& source) {
  OutputGrammar made{std::move(grammar), source.free_until, std::nullopt,
                     !source.free_until.empty() && source.free_after.empty()};
  const grammar::Vocabulary& vocabulary = made.grammar->vocabulary();
  for (TokenId id = 0; id < vocabulary.size() && !source.free_after.empty() && !made.opening; ++id)
    if (vocabulary.token(id).bytes == source.free_after) made.opening = id;
  return made;
}

bool TokenConstraint::fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) {
  if (!matcher_) matcher_.emplace(grammar_.grammar);
  for (; num_taken_ < output.size(); ++num_taken_) take(output[num_taken_]);
  if (is_free_) return false;
  matcher_->fill_mask(mask);
  if (num_taken_ == 0 && grammar_.opening) {
    const auto id = static_cast<std::size_t>(*grammar_.opening);
    mask[id / 32] |= std::uint32_t{1} << id % 32;
  }
  return true;
}

void TokenConstraint::take(TokenId token) {
  if (num_taken_ == 0 && grammar_.opening == token) {
    is_free_ = true;
  } else if (is_free_) {
    take_free(token);
  } else if (!matcher_->accept(token)) {
    fail("token {} is not allowed as number {} of the output", token, num_taken_ + 1);
  }
}

void TokenConstraint::take_free(TokenId token) {
  const std::string& until = grammar_.free_until;
  tail_ += grammar_.grammar->vocabulary().token(token).bytes;
  const std::size_t found = tail_.find(until);
  if (found == std::string::npos) {
    if (tail_.size() >= until.size()) tail_.erase(0, tail_.size() - until.size() + 1);
    return;
  }
  is_free_ = false;
  const std::string rest = tail_.substr(found + until.size());
  if (rest.find_first_not_of(" \t\r\n") != std::string::npos)
    fail("{} follows {} in one token, before anything could be held to the grammar", in_quotes(rest),
         in_quotes(until));
}

std::vector<TokenId> TokenConstraint::forced(int most) {
  std::vector<TokenId> tokens;
  if (is_free_ || (num_taken_ == 0 && grammar_.opening)) return tokens;
  while (static_cast<int>(tokens.size()) < most && !matcher_->ended()) {
    const std::optional<int> next = matcher_->forced();
    if (!next || !matcher_->accept(*next)) break;
    tokens.push_back(*next);
  }
  matcher_->roll_back(tokens.size());
  return tokens;
}

}  // namespace quire
