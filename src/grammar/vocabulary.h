#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire::grammar {

// One token, as a grammar sees it.
struct TokenText {
  std::string bytes;     // what it adds to a text; need not be UTF-8. Empty: no grammar allows it
  bool special = false;  // matches no text; a grammar names it by its id or by `bytes`
};

// Tokens in a trie of their bytes. Nodes stand level by level, the children of one side by side. There are
// two roots: below kPlain are tokens of at most kPlainBytes bytes that any JSON string may hold anywhere,
// whole characters without quotation marks, backslashes and control characters; below kRest all others.
class TokenTrie {
 public:
  static constexpr std::uint32_t kPlain = 0, kRest = 1;
  static constexpr unsigned kPlainBytes = 16;

  explicit TokenTrie(std::span<const TokenText> tokens);

  std::uint32_t first_child(std::uint32_t node) const { return first_child_[node]; }
  std::uint32_t end_child(std::uint32_t node) const { return first_child_[node + 1]; }
  std::uint32_t longest(std::uint32_t root) const { return longest_[root]; }  // bytes of a token
  std::uint8_t byte(std::uint32_t node) const { return bytes_[node]; }
  int token(std::uint32_t node) const { return tokens_[node]; }   // the first that ends here; -1: none
  int next_equal(int token) const { return next_equal_[token]; }  // -1: no more
  std::span<const std::uint32_t> plain_tokens() const { return plain_tokens_; }  // as bits

 private:
  std::vector<std::uint32_t> first_child_;
  std::vector<std::uint8_t> bytes_;
  std::vector<int> tokens_, next_equal_;
  std::vector<std::uint32_t> plain_tokens_;
  std::array<std::uint32_t, 2> longest_{};
};

// A set of tokens, as a list where that is shorter.
struct TokenSet {
  std::vector<std::uint32_t> ids;    // where `words` is empty
  std::vector<std::uint32_t> words;  // bits

  void add_to(std::span<std::uint32_t> mask) const;
  std::size_t bytes() const { return (ids.size() + words.size()) * sizeof(std::uint32_t) + sizeof(TokenSet); }
};

// What a regular expression does to the tokens below one root.
struct LexemeTokens {
  TokenSet inside;                  // all of whose bytes it takes, to its end or not
  std::vector<std::uint32_t> ends;  // nodes with children at which it may be over
  bool too_many_ends = false;       // then they are left out
  // The longest text of a token's beginning and what completes the conjunctions behind it (Loosened::bound).
  bool with_reach = false;
  std::uint64_t reach = 0;
};

// Those of expressions of any grammar, by the keyed hashes of their structure. Bounded; for any thread.
class LexemeCache {
 public:
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  std::shared_ptr<const LexemeTokens> find(const Key& key) const;
  void add(const Key& key, std::shared_ptr<const LexemeTokens> tokens);
  std::size_t bytes() const;

 private:
  struct Hash {
    std::size_t operator()(const Key& key) const { return key.first ^ key.second << 1; }
  };
  mutable std::mutex mutex_;
  std::unordered_map<Key, std::shared_ptr<const LexemeTokens>, Hash> entries_;
  std::size_t bytes_ = 0;
};

// The tokens of one tokenizer by their bytes, and what grammars found out of them. Immutable to its callers,
// for any number of grammars and threads.
class Vocabulary {
 public:
  // `tokens` by id, those of more than 4 KiB as if they were empty; `end_ids` end a text. Error if one of
  // those is no token.
  Vocabulary(std::vector<TokenText> tokens, std::vector<int> end_ids);

  int size() const { return static_cast<int>(tokens_.size()); }
  std::size_t mask_words() const { return (tokens_.size() + 31) / 32; }
  const TokenText& token(int id) const { return tokens_[id]; }
  std::span<const int> special_ids() const { return special_ids_; }
  std::span<const int> end_ids() const { return end_ids_; }
  bool is_end(int id) const { return std::ranges::find(end_ids_, id) != end_ids_.end(); }

  const TokenTrie& trie() const { return trie_; }
  LexemeCache& lexemes() const { return lexemes_; }

 private:
  std::vector<TokenText> tokens_;
  std::vector<int> special_ids_, end_ids_;
  TokenTrie trie_;
  mutable LexemeCache lexemes_;
};

}  // namespace quire::grammar
