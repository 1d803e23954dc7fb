#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/text_piece.h"
#include "tokenizer/unicode.h"

namespace quire::jinja {

// Valid UTF-8 that remembers which of its bytes are trusted.
class Text {
 public:
  Text() = default;
  Text(std::string_view bytes, bool trusted) { append(bytes, trusted); }

  std::string_view bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool trusted() const { return empty() || trust_.covers({0, size()}); }
  std::size_t memory() const { return size() + trust_.num_borders() * sizeof(std::size_t); }

  void append(std::string_view bytes, bool trusted) {
    bytes_ += bytes;
    trust_.append(bytes.size(), trusted);
  }
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end) {  // bytes [begin, end) of other
    bytes_ += other.bytes().substr(begin, end - begin);
    trust_.append(other.trust_, {begin, end});
  }
  Text slice(std::size_t begin, std::size_t end) const {
    Text part;
    part.append(*this, begin, end);
    return part;
  }

  // visit(std::string_view run, bool trusted) for each longest run of equal trust, in order.
  template <typename Visit>
  void for_each_run(Visit&& visit) const {
    trust_.for_each([&](const TextRange& run, bool trusted) { visit(run.of(bytes()), trusted); });
  }

 private:
  std::string bytes_;
  TrustRuns trust_;
};

// ---- Python's view of Unicode text: lengths and indices count code points

std::size_t byte_offset(std::string_view text, std::size_t code_points);  // text.size() when there are fewer

bool is_space(char32_t code_point);       // str.isspace
bool is_line_break(char32_t code_point);  // where str.splitlines splits
bool is_printable(char32_t code_point);   // str.isprintable, which decides what repr escapes
bool is_digit(char32_t code_point);       // decimal digits
bool is_alpha(char32_t code_point);
bool is_upper(char32_t code_point);
bool is_lower(char32_t code_point);

// Simple case mappings, and the one full mapping that is common in text: sharp s.
void append_upper(std::string& out, char32_t code_point);
void append_lower(std::string& out, char32_t code_point);
void append_title(std::string& out, char32_t code_point);

// Offset of the first occurrence, npos if none. Linear in the worst case too.
std::size_t find_first(std::string_view text, std::string_view part, std::size_t from = 0);

}  // namespace quire::jinja
