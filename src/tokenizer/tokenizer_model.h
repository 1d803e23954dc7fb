#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"
#include "tokenizer/vocabulary.h"

namespace quire {

// Encodes the pieces of one call: appends the tokens of a piece of under 2^31 bytes. For one thread.
using PieceEncoder = std::function<void(std::string_view piece, std::vector<TokenId>& out)>;

// What makes tokens of the pieces that a pre-tokenizer cuts. Immutable, usable from any thread.
class TokenizerModel {
 public:
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;
  virtual ~TokenizerModel() = default;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  // The token that is spelled so, unless it is reserved.
  std::optional<TokenId> find_free(std::string_view text) const {
    const auto id = vocabulary_.find(text);
    return id && !is_reserved(*id) ? id : std::nullopt;
  }
  bool is_reserved(TokenId id) const { return reserved_.contains(id); }
  // Pieces are raw bytes, not the characters that a byte-level pre-tokenizer writes for them.
  virtual bool takes_bytes() const { return false; }
  // For a text of about so many bytes.
  virtual PieceEncoder encoder(std::size_t text_bytes) const = 0;

 protected:
  TokenizerModel(Vocabulary vocabulary, std::unordered_set<TokenId> reserved)
      : vocabulary_(std::move(vocabulary)), reserved_(std::move(reserved)) {}

 private:
  Vocabulary vocabulary_;
  std::unordered_set<TokenId> reserved_;
};

// Of each kind: `config` is the "model" object without its tables. `reserved` are ids that no text becomes,
// unless one stands for unknown text: special tokens come from the text of a template alone. `byte_level`
// says that all pieces are in the byte alphabet.
using MergeTexts = std::vector<std::pair<std::string, std::string>>;  // by rank
std::unique_ptr<TokenizerModel> make_bpe(const JsonView& config, Vocabulary vocabulary,
                                         const MergeTexts& merges, std::unordered_set<TokenId> reserved,
                                         bool byte_level);
std::unique_ptr<TokenizerModel> make_unigram(const JsonView& config, Vocabulary vocabulary,
                                             std::vector<double> scores,  // by id
                                             std::unordered_set<TokenId> reserved);

}  // namespace quire
