#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"
#include "tokenizer/vocabulary.h"

namespace quire {

// The byte that a token such as <0x0A> stands for; nothing for other tokens.
std::optional<unsigned char> byte_of_token(std::string_view token);

// The tokens of a vocabulary that stand for bytes and spell text that has no token of its own.
class ByteFallback {
 public:
  explicit ByteFallback(const Vocabulary& vocabulary);

  bool is_complete() const;
  // Appends a token for each byte of `text`, or nothing and returns false if one is missing.
  bool append(std::string_view text, std::vector<TokenId>& out) const;

 private:
  std::array<std::optional<TokenId>, 256> tokens_;
};

}  // namespace quire
