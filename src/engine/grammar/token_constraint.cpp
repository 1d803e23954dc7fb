#include "engine/grammar/token_constraint.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {

namespace {

// Tokens that `text` may begin with, or that begin with it.
std::vector<TokenId> beginnings_of(std::string_view text, const grammar::Vocabulary& vocabulary) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < vocabulary.size(); ++id) {
    const std::string_view bytes = vocabulary.token(id).bytes;
    if (!bytes.empty() && (text.starts_with(bytes) || bytes.starts_with(text))) ids.push_back(id);
  }
  return ids;
}

}  // namespace

OutputGrammar output_grammar(std::shared_ptr<const grammar::Grammar> grammar,
                             const StructuredOutputs& source) {
  OutputGrammar made{std::move(grammar), source.free_until, source.free_after, {}};
  if (!source.free_after.empty())
    made.openings = beginnings_of(source.free_after, made.grammar->vocabulary());
  return made;
}

bool TokenConstraint::fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) {
  if (!matcher_) matcher_.emplace(grammar_.grammar);
  for (; num_taken_ < output.size(); ++num_taken_) take(output[num_taken_]);
  if (is_free_) return false;
  if (is_held_)
    matcher_->fill_mask(mask);
  else
    std::ranges::fill(mask, 0);
  if (!may_open_) return true;
  const std::string_view rest = std::string_view(grammar_.free_after).substr(tail_.size());
  for (const TokenId id :
       tail_.empty() ? grammar_.openings : beginnings_of(rest, grammar_.grammar->vocabulary()))
    mask[static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << id % 32;
  return true;
}

void TokenConstraint::take(TokenId token) {
  const std::string& bytes = grammar_.grammar->vocabulary().token(token).bytes;
  if (is_free_) return take_free(bytes);
  if (may_open_) {
    tail_ += bytes;
    is_free_ = tail_.starts_with(grammar_.free_after);
    if (is_free_) return take_free(std::exchange(tail_, {}).substr(grammar_.free_after.size()));
    may_open_ = std::string_view(grammar_.free_after).starts_with(tail_);
  }
  is_held_ = is_held_ && matcher_->accept(token);
  if (!is_held_ && !may_open_)
    fail("token {} is not allowed as number {} of the output", token, num_taken_ + 1);
}

void TokenConstraint::take_free(const std::string& bytes) {
  const std::string& until = grammar_.free_until;
  may_open_ = false;
  tail_ += bytes;
  const std::size_t found = tail_.find(until);
  if (found == std::string::npos) {
    if (tail_.size() >= until.size()) tail_.erase(0, tail_.size() - until.size() + 1);
    return;
  }
  is_free_ = false;
  is_held_ = true;
  matcher_.emplace(grammar_.grammar);  // which may have taken the beginning of free_after
  const std::string rest = tail_.substr(found + until.size());
  if (rest.find_first_not_of(" \t\r\n") != std::string::npos)
    fail("{} follows {} in one token, before anything could be held to the grammar", in_quotes(rest),
         in_quotes(until));
}

std::vector<TokenId> TokenConstraint::forced(int most) {
  std::vector<TokenId> tokens;
  if (is_free_ || may_open_) return tokens;
  while (static_cast<int>(tokens.size()) < most && !matcher_->ended()) {
    const std::optional<int> next = matcher_->forced();
    if (!next || !matcher_->accept(*next)) break;
    tokens.push_back(*next);
  }
  matcher_->roll_back(tokens.size());
  return tokens;
}

}  // namespace quire
