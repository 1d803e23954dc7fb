#include "tokenizer/byte_level.h"

#include <array>
#include <cstdint>

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
  for (std::size_t position = 0; position < text.size();) {
    const Utf8Step step = read_utf8(text, position);
    if (step.code_point >= kAlphabet.byte.size() || kAlphabet.byte[step.code_point] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.byte[step.code_point]));
    position += step.length;
  }
  return out;
}

}  // namespace quire
