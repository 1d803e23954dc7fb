#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/expressions.h"
#include "grammar/grammar.h"
#include "grammar/vocabulary.h"

namespace quire::grammar {

// What all automata of a grammar begin with.
struct CompiledSource {
  Expressions expressions;
  ExprId root, plain;  // plain: any text that JSON strings may hold as it stands
  Limits limits;
};

// The states of one grammar, which are expressions, over one vocabulary. For any thread: one at a time works.
//
// The mask of a state is made of its alternatives. Of one that begins with a lexeme, the tokens that lie
// within it are the same whatever follows, and mostly known (LexemeCache); only tokens that go beyond its end
// are looked up for what follows. All others are found by walking the trie.
class Automaton {
 public:
  Automaton(const CompiledSource& source, std::shared_ptr<const Vocabulary> vocabulary);

  ExprId root() const { return root_; }
  // Whether its states and masks have grown so much that a fresh copy should take over.
  bool is_full() const { return is_full_; }
  // A state of another automaton of the same source.
  ExprId adopt(Automaton& other, ExprId state);
  // `allowance` is what the computation may take of this thread's time, and is lessened by what it took.
  ExprId advance(ExprId state, int token, std::chrono::nanoseconds& allowance);  // kNothing: not allowed
  std::shared_ptr<const TokenSet> mask(ExprId state, std::chrono::nanoseconds& allowance);
  bool complete(ExprId state) const;
  const Limits& limits() const { return limits_; }

 private:
  using Table = std::array<ExprId, 256>;  // derivatives by byte

  // Does what `compute` does, within the limits.
  template <typename F>
  auto within_limits(std::chrono::nanoseconds& allowance, F&& compute);
  std::shared_ptr<const TokenSet> make_mask(ExprId state);
  const Table* table(ExprId state, bool make);
  // Splits a state into lexemes and tokens with what follows them, and other states.
  void split(ExprId state);
  // Adds the tokens below a node that a state takes; of a lexeme notes also where it may be over, and how far
  // it reaches, `depth` bytes below its root.
  void walk(ExprId state, std::uint32_t node, LexemeTokens* lexeme = nullptr, unsigned depth = 0);
  std::shared_ptr<const LexemeTokens> lexeme_tokens(ExprId lexeme, std::uint32_t root);
  std::shared_ptr<const LexemeTokens> tokens_within(ExprId lexeme, std::uint32_t root, bool with_reach);
  bool takes_plain_text(ExprId state);
  TokenSet take_found(bool as_words = false);  // bits, also where a list is shorter

  Expressions expressions_;
  const ExprId root_, plain_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
  const Limits limits_;
  const std::size_t num_common_;  // expressions that all automata of the source have
  std::atomic<bool> is_full_ = false;
  mutable std::mutex mutex_;
  std::vector<const Table*> table_of_;
  std::deque<Table> tables_;
  std::set<std::pair<ExprId, ExprId>> plain_pairs_;  // of plain_ and of what takes all text that it does
  std::unordered_set<ExprId> not_plain_;
  std::unordered_map<ExprId, std::shared_ptr<const TokenSet>> masks_;
  std::size_t mask_bytes_ = 0;
  std::vector<std::uint32_t> found_;  // tokens of the mask in the making
  // Of the state that was split: lexemes and tokens, each with what follows it, and other states.
  std::vector<std::pair<ExprId, ExprId>> split_lexemes_;
  std::vector<std::pair<std::uint32_t, ExprId>> split_tokens_;
  std::vector<ExprId> split_states_;
};

}  // namespace quire::grammar
