#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"
#include "tokenizer/vocabulary.h"

namespace quire {

// Byte-pair encoding over bytes: a piece begins as one token a byte, and the neighbours of the lowest rank,
// leftmost first, are merged until no pair has a merge. Immutable, usable from any thread.
class Bpe {
 public:
  using MergeTexts = std::vector<std::pair<std::string, std::string>>;  // by rank

  // `model` is the "model" object without its tables. `reserved` are ids that no text may merge into: special
  // tokens come from the text of a template alone.
  Bpe(const JsonView& model, Vocabulary vocabulary, const MergeTexts& merges,
      std::unordered_set<TokenId> reserved);

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  friend class BpeEncoder;

  struct Merge {
    TokenId left = -1;  // -1: an empty slot
    TokenId right = -1;
    std::uint32_t rank = 0;  // lower merges first
    TokenId result = -1;
  };
  static constexpr TokenId kDropped = -1;  // a byte without a token, and no unk_token to stand for it

  void set_byte_tokens(const JsonView& model);
  void add_merges(const MergeTexts& merges, const std::string& where);
  std::size_t slot_of(TokenId left, TokenId right) const;
  const Merge* find_merge(TokenId left, TokenId right) const;

  Vocabulary vocabulary_;
  std::array<TokenId, 256> byte_tokens_;
  std::array<bool, 256> unknown_{};  // bytes that unk_token stands for
  bool fuse_unknown_ = false;        // one unk_token for a run of them
  bool whole_pieces_ = false;        // ignore_merges: a piece that is a token is that token
  std::unordered_set<TokenId> reserved_;
  std::vector<Merge> merges_;  // open addressing, a power of two, at most half full
};

// Encodes the pieces of one call, remembering short ones. For one thread.
class BpeEncoder {
 public:
  BpeEncoder(const Bpe& bpe, std::size_t text_bytes);

  // Appends the tokens of a piece of bytes, under 2^31 of them.
  void encode(std::string_view piece, std::vector<TokenId>& out);

 private:
  struct Symbol {
    TokenId token;
    std::int32_t previous, next;  // symbols; -1 at the ends
  };
  struct Candidate {      // two neighbours that have a merge
    std::uint64_t order;  // rank, then position
    TokenId left, right, result;
  };
  struct CacheSlot {
    static constexpr std::size_t kMaxBytes = 22, kMaxTokens = 6;
    std::uint8_t bytes = 0;  // 0: empty
    std::uint8_t tokens = 0;
    std::array<char, kMaxBytes> key;
    std::array<TokenId, kMaxTokens> value;
  };

  void merge(std::string_view piece, std::vector<TokenId>& out);
  void add_bytes(std::string_view piece);
  void add_candidate(std::int32_t left);
  void join(std::int32_t left, TokenId result);

  const Bpe& bpe_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<CacheSlot> cache_;  // by hash; a power of two
};

}  // namespace quire
