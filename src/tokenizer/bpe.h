#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/bpe_alphabet.h"
#include "tokenizer/json_view.h"
#include "tokenizer/piece_cutter.h"
#include "tokenizer/token_id.h"
#include "tokenizer/tokenizer_model.h"

namespace quire {

// Byte-pair encoding: a piece begins as the tokens of its bytes or characters, and the neighbours of the
// lowest rank, leftmost first, are merged until no pair has a merge.
class Bpe final : public TokenizerModel {
 public:
  using MergeTexts = std::vector<std::pair<std::string, std::string>>;  // by rank

  // `config` is the "model" object without its tables; the rest as for make_tokenizer_model.
  Bpe(const JsonView& config, Vocabulary vocabulary, const MergeTexts& merges,
      std::unordered_set<TokenId> reserved, bool byte_level);

  bool takes_bytes() const override { return alphabet_.takes_bytes(); }
  std::unique_ptr<PieceEncoder> encoder(std::size_t text_bytes) const override;

 private:
  friend class BpeEncoder;

  struct Merge {
    TokenId left = -1;  // -1: an empty slot
    TokenId right = -1;
    std::uint32_t rank = 0;  // lower merges first
    TokenId result = -1;
  };

  void add_merges(const MergeTexts& merges, const std::string& where);
  void make_cutter();
  std::size_t slot_of(TokenId left, TokenId right) const;
  const Merge* find_merge(TokenId left, TokenId right) const;

  BpeAlphabet alphabet_;
  bool whole_pieces_;                  // ignore_merges: a piece that is a token is that token
  std::vector<Merge> merges_;          // open addressing, a power of two, at most half full
  std::optional<PieceCutter> cutter_;  // where a part of a piece may be encoded by itself
};

// Remembers the tokens of short pieces.
class BpeEncoder final : public PieceEncoder {
 public:
  BpeEncoder(const Bpe& bpe, std::size_t text_bytes);

  void encode(std::string_view piece, std::vector<TokenId>& out) override;

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

  void encode_part(std::string_view part, std::vector<TokenId>& out);
  void merge(std::string_view part, std::vector<TokenId>& out);
  void start(std::string_view part);
  void add_candidate(std::int32_t left);
  void join(std::int32_t left, TokenId result);

  const Bpe& bpe_;
  std::vector<TokenId> first_tokens_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  std::vector<CacheSlot> cache_;  // by hash; a power of two
};

}  // namespace quire
