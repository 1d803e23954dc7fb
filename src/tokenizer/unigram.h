#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tokenizer/byte_fallback.h"
#include "tokenizer/byte_trie.h"
#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"
#include "tokenizer/tokenizer_model.h"

namespace quire {

// A unigram language model: of all ways to spell a piece with tokens, the one whose scores have the largest
// sum.
class Unigram final : public TokenizerModel {
 public:
  // `config` is the "model" object without its table; a score for each id.
  Unigram(const JsonView& config, Vocabulary vocabulary, std::vector<double> scores,
          std::unordered_set<TokenId> reserved);

  std::unique_ptr<PieceEncoder> encoder(std::size_t text_bytes) const override;

 private:
  friend class UnigramEncoder;

  ByteTrie make_trie() const;

  std::vector<double> scores_;  // by id
  ByteTrie trie_;
  double unknown_score_;            // of a character without a token
  std::optional<TokenId> unknown_;  // its token; without one such text is refused
  std::optional<ByteFallback> byte_fallback_;
  std::string where_;
};

class UnigramEncoder final : public PieceEncoder {
 public:
  explicit UnigramEncoder(const Unigram& model) : model_(model) {}

  void encode(std::string_view piece, std::vector<TokenId>& out) override;

 private:
  struct Path {  // the best one to a place in the piece: its score and its last token
    static constexpr std::uint32_t kNowhere = UINT32_MAX;
    double score = 0;
    std::uint32_t begin = kNowhere;
    TokenId token = -1;
  };
  struct Span {
    std::size_t begin, end;
    TokenId token;
  };

  void find_paths(std::string_view piece);
  void extend(std::size_t begin, std::size_t end, TokenId token, double score);
  TokenId unknown_token() const;
  void append_unknown(std::string_view text, std::vector<TokenId>& out) const;

  const Unigram& model_;
  std::vector<Path> paths_;  // by the byte at which they end
  std::vector<Span> spans_;
};

}  // namespace quire
