#include <algorithm>

#include "grammar/automaton.h"
#include "grammar/grammar.h"

namespace quire::grammar {

Grammar::Grammar(std::shared_ptr<const Vocabulary> vocabulary, std::unique_ptr<const CompiledSource> compiled)
    : vocabulary_(std::move(vocabulary)), compiled_(std::move(compiled)) {}

Grammar::~Grammar() = default;

std::size_t Grammar::memory_bytes() const { return compiled_->expressions.memory().budget().bytes; }

std::shared_ptr<Automaton> Grammar::automaton() const {
  const std::scoped_lock lock(mutex_);
  if (current_ != nullptr && !current_->is_full()) return current_;
  try {
    current_ = std::make_shared<Automaton>(*compiled_, vocabulary_);
  } catch (const GrammarError&) {
    if (current_ == nullptr) throw;
  }
  return current_;
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)),
      automaton_(grammar_->automaton()),
      states_{automaton_->root()},
      allowance_(automaton_->limits().output_time) {}

bool Matcher::accept(int token) {
  const Vocabulary& vocabulary = grammar_->vocabulary();
  if (token < 0 || token >= vocabulary.size()) return false;
  const bool ends = vocabulary.is_end(token) && complete();
  if (ended() && !ends) return false;
  const ExprId next = ends ? states_.back() : automaton_->advance(states_.back(), token, allowance_);
  if (next == kNothing) return false;
  tokens_.push_back(token);
  states_.push_back(next);
  num_ends_ += ends ? 1 : 0;
  if (automaton_->is_full()) leave_full_automaton();
  return true;
}

// Goes on in a fresh copy, if there is one; the full one is given up when all have left it.
void Matcher::leave_full_automaton() {
  constexpr std::ptrdiff_t kKeptStates = 8;  // which can be gone back to at once
  const auto fresh = grammar_->automaton();
  if (fresh == automaton_) return;
  std::vector<std::uint32_t> states(states_.end() - std::min(std::ssize(states_), kKeptStates),
                                    states_.end());
  try {
    for (std::uint32_t& state : states) state = fresh->adopt(*automaton_, state);
  } catch (const GrammarError&) {
    return;
  }
  automaton_ = fresh;
  states_ = std::move(states);
}

void Matcher::roll_back(std::size_t num_tokens) {
  QUIRE_CHECK(num_tokens <= this->num_tokens(), "{} of {} tokens", num_tokens, this->num_tokens());
  const std::size_t left = tokens_.size() - num_tokens;
  if (num_tokens >= states_.size()) {  // a full automaton was left since, with its states
    Matcher again(grammar_);
    again.allowance_ = allowance_;
    for (std::size_t i = 0; i < left; ++i) again.accept(tokens_[i]);
    *this = std::move(again);
    return;
  }
  states_.resize(states_.size() - num_tokens);
  tokens_.resize(left);
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
  const auto allowed = automaton_->mask(states_.back(), allowance_);
  if (allowed->ids.empty() && allowed->words.empty())
    throw GrammarError("no token of the model's vocabulary continues the text as the grammar wants it");
  allowed->add_to(mask);
}

std::optional<int> Matcher::forced() const {
  const auto only = [](const auto& ids) {
    return ids.size() == 1 ? std::optional(static_cast<int>(ids.front())) : std::nullopt;
  };
  return ended() ? only(grammar_->vocabulary().end_ids())
                 : only(automaton_->mask(states_.back(), allowance_)->ids);
}

bool Matcher::complete() const { return automaton_->complete(states_.back()); }

}  // namespace quire::grammar
