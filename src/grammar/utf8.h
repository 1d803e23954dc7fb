#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "grammar/expressions.h"

namespace quire::grammar {

inline constexpr char32_t kLastCharacter = 0x10FFFF;

// The characters of valid UTF-8; nothing for other bytes.
std::optional<std::u32string> decode_utf8(std::string_view text);

// A set of characters, as ranges that include both ends.
class CharacterSet {
 public:
  using Ranges = std::vector<std::pair<char32_t, char32_t>>;

  CharacterSet() = default;
  CharacterSet(std::initializer_list<Ranges::value_type> ranges) : CharacterSet(Ranges(ranges)) {}
  explicit CharacterSet(Ranges ranges);  // in any order

  static CharacterSet all() { return {{0, kLastCharacter}}; }
  CharacterSet complement() const;
  CharacterSet without(const CharacterSet& other) const;
  bool has(char32_t character) const;
  std::optional<char32_t> only() const;  // the one character, if there is one alone
  const Ranges& ranges() const { return ranges_; }

 private:
  Ranges ranges_;  // ascending, with gaps
};

// One of the characters in UTF-8; surrogates are left out.
ExprId utf8_character(Expressions& expressions, const CharacterSet& set);

}  // namespace quire::grammar
