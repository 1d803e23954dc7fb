#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace quire {

// One step of reading UTF-8 that may be damaged.
struct Utf8Step {
  enum class Kind { kCharacter, kInvalid, kIncomplete };
  Kind kind;
  std::size_t length;   // bytes consumed, at least 1
  char32_t code_point;  // U+FFFD unless kind is kCharacter
};

// Reads at `position` < text.size(). kInvalid consumes one maximal subpart (Unicode 15, section 3.9), which
// stands for one U+FFFD; kIncomplete is a subpart that the end of the text cuts short.
Utf8Step read_utf8(std::string_view text, std::size_t position);

void append_utf8(std::string& out, char32_t code_point);

// Whether it continues a character that begins before it.
inline bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }
// Those that begin in these bytes, so that one in parts counts once.
inline std::size_t count_code_points(std::string_view bytes) {
  return std::ranges::count_if(bytes, [](char byte) { return !is_continuation(byte); });
}
// Where the character begins that the byte at `position` of valid UTF-8 belongs to.
std::size_t character_begin(std::string_view text, std::size_t position);

// The number of leading bytes of `text` that are valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);
inline bool is_valid_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Copies `text`, with each invalid maximal subpart replaced by U+FFFD.
std::string to_valid_utf8(std::string_view text);

// Moves out of `bytes` what further bytes cannot change, invalid parts replaced by U+FFFD; what stays is the
// beginning of a character (at most 3 bytes).
std::string take_complete_utf8(std::string& bytes);

// A character in its text. A subpart of damaged text counts as U+FFFD.
struct Character {
  std::size_t begin, end;
  char32_t code_point;
};
// At the end of the text an empty one, 0.
inline Character character_at(std::string_view text, std::size_t begin) {
  if (begin == text.size()) return {begin, begin, 0};
  const Utf8Step step = read_utf8(text, begin);
  return {begin, begin + step.length, step.code_point};
}

// The characters of a text, in order: a range that is its own iterator.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text), character_(character_at(text, 0)) {}

  Characters begin() const { return *this; }
  std::default_sentinel_t end() const { return {}; }
  const Character& operator*() const { return character_; }
  void operator++() { character_ = character_at(text_, character_.end); }
  bool operator==(std::default_sentinel_t) const { return character_.begin == text_.size(); }

 private:
  std::string_view text_;
  Character character_;
};

// What is left of valid UTF-8 without the characters at an end that strips(char32_t code_point) is true of.
template <typename Strips>
std::string_view strip_left(std::string_view text, const Strips& strips) {
  for (const auto& [begin, end, c] : Characters(text))
    if (!strips(c)) return text.substr(begin);
  return text.substr(text.size());
}
template <typename Strips>
std::string_view strip_right(std::string_view text, const Strips& strips) {
  while (!text.empty()) {
    const Character last = character_at(text, character_begin(text, text.size() - 1));
    if (!strips(last.code_point)) break;
    text = text.substr(0, last.begin);
  }
  return text;
}

// Whether that is one character, of valid UTF-8.
inline bool is_character(std::string_view text) {
  return !text.empty() && read_utf8(text, 0).length == text.size();
}

int category_of(char32_t code_point);         // as utf8proc_category_t
bool is_whitespace(char32_t code_point);      // the property White_Space
bool is_word_character(char32_t code_point);  // what \w matches: UTS 18, annex C

}  // namespace quire
