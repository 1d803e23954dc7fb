#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace quire::grammar {

// One token, as a grammar sees it.
struct TokenText {
  std::string bytes;     // what it adds to a text; need not be UTF-8. Empty: no grammar allows it
  bool special = false;  // matches no text; a grammar names it by its id or by `bytes`
};

class TokenTrie;
class LexemeCache;

// The tokens of one tokenizer by their bytes, and what grammars found out of them. Immutable to its callers,
// for any number of grammars and threads.
class Vocabulary {
 public:
  // `tokens` by id, those of more than 4 KiB as if they were empty; `end_ids` end a text. Error if one of
  // those is no token.
  Vocabulary(std::vector<TokenText> tokens, std::vector<int> end_ids);
  ~Vocabulary();

  int size() const { return static_cast<int>(tokens_.size()); }
  std::size_t mask_words() const { return (tokens_.size() + 31) / 32; }
  const TokenText& token(int id) const { return tokens_[id]; }
  std::span<const int> end_ids() const { return end_ids_; }
  bool is_end(int id) const { return std::ranges::find(end_ids_, id) != end_ids_.end(); }

  const TokenTrie& trie() const { return *trie_; }
  LexemeCache& lexemes() const { return *lexemes_; }

 private:
  std::vector<TokenText> tokens_;
  std::vector<int> end_ids_;
  std::unique_ptr<const TokenTrie> trie_;
  std::unique_ptr<LexemeCache> lexemes_;
};

}  // namespace quire::grammar
