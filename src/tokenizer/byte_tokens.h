#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"
#include "tokenizer/vocabulary.h"

namespace quire {

// Byte-level vocabularies are written in an alphabet of 256 printable characters, one a byte: printable
// Latin-1 characters stand for their own code, the other 68 bytes for U+0100 onwards in order (GPT-2's
// bytes_to_unicode).

// `bytes` in that alphabet.
std::string to_byte_characters(std::string_view bytes);

// The bytes that `text` stands for; nothing if a character is outside the alphabet. `text` is valid UTF-8.
std::optional<std::string> from_byte_characters(std::string_view text);

// Other vocabularies spell a byte as <0x0A>. The byte that such a token stands for; nothing for other tokens.
std::optional<char> byte_of_token(std::string_view token);

// The tokens of a vocabulary that stand for single bytes, in one of these two ways.
class ByteTokens {
 public:
  enum class Spelling { kCharacter, kHexadecimal };
  ByteTokens(const Vocabulary& vocabulary, Spelling spelling);

  bool is_complete() const;
  const std::optional<TokenId>& of(char byte) const { return tokens_[static_cast<unsigned char>(byte)]; }
  // Appends a token for each byte of `text`, or nothing and returns false if one is missing.
  bool append(std::string_view text, std::vector<TokenId>& out) const;

 private:
  std::array<std::optional<TokenId>, 256> tokens_;
};

}  // namespace quire
