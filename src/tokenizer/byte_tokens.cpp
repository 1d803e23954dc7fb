#include "tokenizer/byte_tokens.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/format.h"
#include "tokenizer/unicode.h"

namespace quire {
namespace {

struct Alphabet {
  std::array<char32_t, 256> character;
  std::array<std::int16_t, 0x144> byte;  // of a character below U+0144; -1 if it is none of the alphabet's
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet{};
  alphabet.byte.fill(-1);
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = printable ? byte : next++;
    alphabet.character[byte] = character;
    alphabet.byte[character] = static_cast<std::int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::string to_byte_characters(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char byte : bytes) append_utf8(out, kAlphabet.character[static_cast<unsigned char>(byte)]);
  return out;
}

std::optional<std::string> from_byte_characters(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const auto& [begin, end, c] : Characters(text)) {
    if (c >= kAlphabet.byte.size() || kAlphabet.byte[c] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.byte[c]));
  }
  return out;
}

std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  const char* const digits = token.data() + 3;
  unsigned char byte = 0;
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return static_cast<char>(byte);
}

ByteTokens::ByteTokens(const Vocabulary& vocabulary, Spelling spelling) {
  for (std::size_t byte = 0; byte < tokens_.size(); ++byte) {
    const char c = static_cast<char>(byte);
    tokens_[byte] = vocabulary.find(spelling == Spelling::kCharacter ? to_byte_characters({&c, 1})
                                                                     : format_text("<0x{:02X}>", byte));
  }
}

bool ByteTokens::is_complete() const {
  return std::ranges::all_of(tokens_, [](const auto& token) { return token.has_value(); });
}

bool ByteTokens::append(std::string_view text, std::vector<TokenId>& out) const {
  if (!std::ranges::all_of(text, [&](char byte) { return of(byte).has_value(); })) return false;
  for (const char byte : text) out.push_back(*of(byte));
  return true;
}

}  // namespace quire
