#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdint>
#include <cstring>

namespace quire {
namespace {

constexpr char32_t kReplacement = 0xFFFD;
constexpr std::string_view kReplacementUtf8 = "\xEF\xBF\xBD";

// What a lead byte says: the length of its character and the bounds of the second byte, which exclude
// overlong forms, surrogates and code points past U+10FFFF (Unicode 15, table 3-7). Length 0: no lead byte.
struct Lead {
  std::size_t length;
  unsigned char low, high;
};

Lead lead_of(unsigned char byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step read_utf8(std::string_view text, std::size_t position) {
  const auto byte_at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte_at(position);
  const Lead lead = lead_of(first);
  if (lead.length == 0) return {Utf8Step::Kind::kInvalid, 1, kReplacement};
  if (lead.length == 1) return {Utf8Step::Kind::kCharacter, 1, first};
  char32_t code_point = first & (0xFFu >> (lead.length + 1));
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {Utf8Step::Kind::kIncomplete, i, kReplacement};
    const unsigned char byte = byte_at(position + i);
    const bool fits = i == 1 ? byte >= lead.low && byte <= lead.high : is_continuation(text[position + i]);
    if (!fits) return {Utf8Step::Kind::kInvalid, i, kReplacement};
    code_point = code_point << 6 | (byte & 0x3Fu);
  }
  return {Utf8Step::Kind::kCharacter, lead.length, code_point};
}

void append_utf8(std::string& out, char32_t code_point) {
  if (code_point < 0x80) return out.push_back(static_cast<char>(code_point));
  utf8proc_uint8_t bytes[4];
  const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code_point), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

std::size_t character_begin(std::string_view text, std::size_t position) {
  while (is_continuation(text[position])) --position;
  return position;
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t position = 0;
  while (position < text.size()) {
    std::uint64_t eight = 0;
    if (text.size() - position >= sizeof eight) {
      std::memcpy(&eight, text.data() + position, sizeof eight);
      if ((eight & 0x8080808080808080u) == 0) {
        position += sizeof eight;
        continue;
      }
    }
    const Utf8Step step = read_utf8(text, position);
    if (step.kind != Utf8Step::Kind::kCharacter) break;
    position += step.length;
  }
  return position;
}

std::string to_valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    out += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    out += kReplacementUtf8;
    text.remove_prefix(read_utf8(text, 0).length);
  }
  return out;
}

std::string take_complete_utf8(std::string& bytes) {
  std::size_t complete = bytes.size();
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const Utf8Step step = read_utf8(bytes, bytes.size() - back);
    if (step.kind == Utf8Step::Kind::kIncomplete && step.length == back) complete = bytes.size() - back;
  }
  std::string out = to_valid_utf8(std::string_view(bytes).substr(0, complete));
  bytes.erase(0, complete);
  return out;
}

int category_of(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_whitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool is_word_character(char32_t c) {
  const int category = category_of(c);
  // Letters, marks, decimal and letter numbers; other numbers come next.
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) return true;
  // The letters in circles and squares are Alphabetic; U+200C and U+200D are Join_Control.
  return category == UTF8PROC_CATEGORY_PC || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189) || c == 0x200C || c == 0x200D;
}

}  // namespace quire
