#include <algorithm>

#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace quire::grammar {

Grammar::Grammar(std::shared_ptr<const Vocabulary> vocabulary, std::shared_ptr<const Automaton> compiled)
    : vocabulary_(std::move(vocabulary)), compiled_(std::move(compiled)) {}

Grammar::~Grammar() = default;

std::shared_ptr<Automaton> Grammar::automaton() const {
  const std::scoped_lock lock(mutex_);
  if (current_ == nullptr || current_->half_full()) current_ = std::make_shared<Automaton>(*compiled_);
  return current_;
}

std::size_t Grammar::memory_bytes() const {
  const std::scoped_lock lock(mutex_);
  return compiled_->memory_bytes() + (current_ == nullptr ? 0 : current_->memory_bytes());
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), automaton_(grammar_->automaton()), states_{automaton_->root()} {}

bool Matcher::accept(int token) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= vocabulary.size()) return false;
  const bool ends = vocabulary.is_end(token) && complete();
  if (ended() && !ends) return false;
  const ExprId next = ends ? states_.back() : automaton_->advance(states_.back(), token);
  if (next == kNothing) return false;
  states_.push_back(next);
  num_ends_ += ends ? 1 : 0;
  return true;
}

void Matcher::roll_back(std::size_t num_tokens) {
  QUIRE_CHECK(num_tokens <= this->num_tokens(), "{} of {} tokens", num_tokens, this->num_tokens());
  states_.resize(states_.size() - num_tokens);
  num_ends_ -= std::min(num_ends_, num_tokens);
}

void Matcher::fill_mask(std::span<std::uint32_t> mask) const {
  QUIRE_CHECK(mask.size() == grammar_->vocabulary().mask_words(), "{} words", mask.size());
  std::ranges::fill(mask, 0);
  if (ended()) {
    for (const int id : grammar_->vocabulary().end_ids())
      mask[static_cast<std::size_t>(id) / 32] |= 1u << id % 32;
    return;
  }
  const auto allowed = automaton_->mask(states_.back());
  if (allowed->tokens.ids.empty() && allowed->tokens.words.empty())
    throw GrammarError("no token of the model's vocabulary continues the text as the grammar wants it");
  allowed->tokens.add_to(mask);
}

std::optional<int> Matcher::forced() const {
  if (!ended()) return automaton_->mask(states_.back())->forced;
  const auto ends = grammar_->vocabulary().end_ids();
  return ends.size() == 1 ? std::optional(ends.front()) : std::nullopt;
}

bool Matcher::complete() const { return automaton_->complete(states_.back()); }

}  // namespace quire::grammar
