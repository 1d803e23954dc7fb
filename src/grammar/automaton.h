#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "grammar/expressions.h"
#include "grammar/grammar.h"
#include "grammar/token_trie.h"

namespace quire::grammar {

// The states of one grammar, which are expressions, over one vocabulary. For any thread: one at a time works.
//
// The mask of a state is made of its alternatives. Of one that begins with a lexeme, the tokens that lie
// within it are the same whatever follows, and mostly known (LexemeCache); only tokens that go beyond its end
// are looked up for what follows. All others are found by walking the trie.
class Automaton {
 public:
  Automaton(Expressions expressions, ExprId root, std::shared_ptr<const Vocabulary> vocabulary,
            const Limits& limits);
  Automaton(const Automaton& other);  // of what `other` was when it was made
  Automaton& operator=(const Automaton&) = delete;

  struct Mask {
    TokenSet tokens;
    std::optional<int> forced;
  };

  ExprId root() const { return root_; }
  bool half_full() const { return memory_bytes() > limits_.memory_bytes / 2; }
  std::size_t memory_bytes() const;
  ExprId advance(ExprId state, int token);  // kNothing: not allowed
  bool complete(ExprId state) const;
  std::shared_ptr<const Mask> mask(ExprId state);

 private:
  using Table = std::array<ExprId, 256>;  // derivatives by byte

  void start_budget();
  const Table* table(ExprId state, bool make);
  ExprId next(ExprId state, const Table* table, std::uint8_t byte) {
    return table != nullptr ? (*table)[byte] : expressions_.derivative(state, byte);
  }
  // Splits a state into lexemes with what follows them, tokens, and other states.
  void split(ExprId state);
  // Adds the tokens below a node that a state takes; with `ends` also nodes at which it may be over.
  void walk(ExprId state, std::uint32_t node, std::vector<std::uint32_t>* ends);
  std::shared_ptr<const LexemeTokens> lexeme_tokens(ExprId lexeme);
  bool takes_plain_text(ExprId state);
  bool takes_plain_text(ExprId plain, ExprId state, unsigned bytes, std::vector<std::uint64_t>& assumed);
  void add(int token);
  TokenSet take_found(bool sorted_unique);

  Expressions expressions_;
  ExprId root_, plain_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  Limits limits_;
  mutable std::mutex mutex_;
  std::vector<const Table*> table_of_;
  std::deque<Table> tables_;
  std::unordered_map<std::uint64_t, unsigned> plain_bytes_;  // by both states: how far plain text is taken
  std::unordered_set<ExprId> not_plain_;
  std::unordered_map<ExprId, std::shared_ptr<const Mask>> masks_;
  std::size_t mask_bytes_ = 0;
  // Of the mask in the making:
  std::vector<std::uint32_t> found_;
  std::vector<std::pair<ExprId, ExprId>> split_lexemes_;  // each and what follows it
  std::vector<ExprId> split_states_;
  std::unordered_set<ExprId> split_seen_;
};

}  // namespace quire::grammar
