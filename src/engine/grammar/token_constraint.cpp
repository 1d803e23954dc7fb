#include "engine/grammar/token_constraint.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"

namespace quire {
namespace {

// That the masks of a request may take in each step at nobody's expense.
constexpr std::int64_t kFreeNanoseconds = 1'000'000;

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

OutputGrammar::OutputGrammar(std::shared_ptr<const grammar::Grammar> compiled,
                             std::shared_ptr<const StructuredOutputs> of)
    : grammar(std::move(compiled)), source(std::move(of)) {
  if (!source->free_after.empty()) openings = beginnings_of(source->free_after, grammar->vocabulary());
}

// Does something at the expense of the request, whatever comes of it.
template <typename Work>
auto TokenConstraint::charged(const Work& work) try {
  const auto check = [this] {
    if (*time_left_ <= 0) throw grammar::LimitError("it takes too long to find out what may follow");
  };
  struct Charge {
    ~Charge() {
      const std::int64_t cost = thread_time().count() - begin;
      constraint.time_left_->fetch_sub(std::max<std::int64_t>(cost - constraint.free_, 0));
      constraint.free_ = std::max<std::int64_t>(constraint.free_ - cost, 0);
    }
    TokenConstraint& constraint;
    const std::int64_t begin = thread_time().count();
  };
  check();
  auto result = [&] {
    const Charge charge{*this};
    return work();
  }();
  check();
  return result;
} catch (const Error& e) {
  fail("{} cannot be met: {}", grammar_->source->name, e.what());
}

bool TokenConstraint::fill_mask(std::span<const TokenId> output, std::span<std::uint32_t> mask) {
  // The others that hold it: the request, to make more, and the constraints of its other outputs.
  free_ = kFreeNanoseconds / std::max(time_left_.use_count() - 1, 1L);
  return charged([&] {
    const grammar::Vocabulary& vocabulary = grammar_->grammar->vocabulary();
    const auto word_of = [&](TokenId id) -> std::uint32_t& {
      return mask[static_cast<std::size_t>(id) / 32];
    };
    if (!matcher_) matcher_.emplace(grammar_->grammar);
    for (; num_taken_ < output.size(); ++num_taken_) take(output[num_taken_]);
    if (is_free_) return false;
    if (is_held_)
      matcher_->fill_mask(mask);
    else
      std::ranges::fill(mask, 0);
    for (const TokenId id : vocabulary.end_ids()) {
      if ((word_of(id) >> id % 32 & 1) == 0 || !ends_early(id)) continue;
      word_of(id) &= ~(1U << id % 32);
      if (!may_open_ && std::ranges::count(mask, 0U) == std::ssize(mask))
        fail("the grammar wants an end token before its end");
    }
    if (!may_open_) return true;
    const std::string_view rest = std::string_view(grammar_->source->free_after).substr(tail_.size());
    for (const TokenId id : tail_.empty() ? grammar_->openings : beginnings_of(rest, vocabulary))
      word_of(id) |= 1U << id % 32;
    return true;
  });
}

// Of a token that may come next: whether it ends the output, and not the text of the grammar. Rules may name
// it.
bool TokenConstraint::ends_early(TokenId token) {
  if (!grammar_->grammar->vocabulary().is_end(token) || matcher_->complete() || !matcher_->accept(token))
    return false;
  const bool is_early = !matcher_->complete();
  matcher_->roll_back(1);
  return is_early;
}

void TokenConstraint::take(TokenId token) {
  const std::string& bytes = grammar_->grammar->vocabulary().token(token).bytes;
  if (is_free_) return take_free(bytes);
  if (may_open_) {
    tail_ += bytes;
    is_free_ = tail_.starts_with(grammar_->source->free_after);
    if (is_free_) return take_free(std::exchange(tail_, {}).substr(grammar_->source->free_after.size()));
    may_open_ = std::string_view(grammar_->source->free_after).starts_with(tail_);
  }
  is_held_ = is_held_ && matcher_->accept(token);
  if (!is_held_ && !may_open_)
    fail("token {} is not allowed as number {} of the output", token, num_taken_ + 1);
}

void TokenConstraint::take_free(const std::string& bytes) {
  const std::string& until = grammar_->source->free_until;
  may_open_ = false;
  tail_ += bytes;
  const std::size_t found = tail_.find(until);
  if (found == std::string::npos) {
    if (tail_.size() >= until.size()) tail_.erase(0, tail_.size() - until.size() + 1);
    return;
  }
  is_free_ = false;
  is_held_ = true;
  matcher_.emplace(grammar_->grammar);  // which may have taken the beginning of free_after
  const std::string rest = tail_.substr(found + until.size());
  if (rest.find_first_not_of(" \t\r\n") != std::string::npos)
    fail("{} follows {} in one token, before anything could be held to the grammar", in_quotes(rest),
         in_quotes(until));
}

std::vector<TokenId> TokenConstraint::forced(int most) {
  if (is_free_ || may_open_) return {};
  return charged([&] {
    std::vector<TokenId> tokens;
    for (bool ends = matcher_->ended(); !ends && static_cast<int>(tokens.size()) < most;) {
      const std::optional<int> next = matcher_->forced();
      if (!next || ends_early(*next) || !matcher_->accept(*next)) break;
      tokens.push_back(*next);
      ends = grammar_->grammar->vocabulary().is_end(*next);
    }
    matcher_->roll_back(tokens.size());
    return tokens;
  });
}

}  // namespace quire
