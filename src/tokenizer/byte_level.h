#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// Byte-level vocabularies are written in an alphabet of 256 printable characters, one a byte: printable
// Latin-1 characters stand for their own code, the other 68 bytes for U+0100 onwards in order (GPT-2's
// bytes_to_unicode).

// `bytes` in that alphabet.
std::string to_byte_characters(std::string_view bytes);

// The bytes that `text` stands for; nothing if a character is outside the alphabet. `text` is valid UTF-8.
std::optional<std::string> from_byte_characters(std::string_view text);

}  // namespace quire
