#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_fallback.h"
#include "tokenizer/json_view.h"
#include "tokenizer/token_id.h"
#include "tokenizer/tokenizer_model.h"

namespace quire {

// The tokens that the merging of a piece begins with: one a byte, or one a character. Immutable, usable from
// any thread.
class BpeAlphabet {
 public:
  // Of the "model" object `config`; `model` outlives this object. `byte_level` as for make_tokenizer_model.
  BpeAlphabet(const JsonView& config, const TokenizerModel& model, bool byte_level);

  bool takes_bytes() const { return takes_bytes_; }
  // A character's token depends on its place in the piece.
  bool has_affixes() const { return !prefix_.empty() || !suffix_.empty(); }
  const std::string& continuing_prefix() const { return prefix_; }

  void append_tokens(std::string_view piece, std::vector<TokenId>& out) const;

 private:
  void append_bytes(std::string_view piece, std::vector<TokenId>& out) const;
  void append_characters(std::string_view piece, std::vector<TokenId>& out) const;

  const TokenizerModel& model_;
  std::string prefix_, suffix_;  // of all characters but the first, and of the last
  bool takes_bytes_;
  std::array<std::optional<TokenId>, 256> byte_tokens_;  // with takes_bytes_
  std::optional<ByteFallback> byte_fallback_;
  std::optional<TokenId> unknown_;  // for text without a token, which is left out otherwise
  bool fuse_unknown_;               // one for a run of such text
};

}  // namespace quire
