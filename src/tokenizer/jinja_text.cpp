#include "tokenizer/jinja_text.h"

#include <string.h>  // memmem, a GNU extension
#include <utf8proc.h>

namespace quire::jinja {
namespace {

void append_mapped(std::string& out, char32_t c, utf8proc_int32_t (*map)(utf8proc_int32_t),
                   std::string_view sharp_s) {
  constexpr char32_t kSharpS = 0xDF;
  if (c == kSharpS) {
    out += sharp_s;
  } else {
    append_utf8(out, static_cast<char32_t>(map(static_cast<utf8proc_int32_t>(c))));
  }
}

}  // namespace

std::size_t byte_offset(std::string_view text, std::size_t code_points) {
  std::size_t offset = 0;
  for (; offset < text.size(); ++offset) {
    if (is_continuation(text[offset])) continue;
    if (code_points-- == 0) break;
  }
  return offset;
}

bool is_space(char32_t c) { return is_whitespace(c) || (c >= 0x1C && c <= 0x1F); }

bool is_line_break(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_printable(char32_t c) {
  const int kind = category_of(c);  // of separators and others, at the ends, only the space is
  return c == U' ' || (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_SO);
}

bool is_digit(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_ND; }

bool is_alpha(char32_t c) {
  const int kind = category_of(c);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category_of(c) == UTF8PROC_CATEGORY_LL; }

void append_upper(std::string& out, char32_t c) { append_mapped(out, c, utf8proc_toupper, "SS"); }
void append_lower(std::string& out, char32_t c) { append_mapped(out, c, utf8proc_tolower, "\u00df"); }
void append_title(std::string& out, char32_t c) { append_mapped(out, c, utf8proc_totitle, "Ss"); }

std::size_t find_first(std::string_view text, std::string_view part, std::size_t from) {
  if (part.empty()) return from <= text.size() ? from : std::string_view::npos;
  if (from >= text.size()) return std::string_view::npos;
  const void* hit = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
}

}  // namespace quire::jinja
