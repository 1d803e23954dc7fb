#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/unicode.h"

// Python's view of Unicode text: lengths and indices count code points.
namespace quire::jinja {

// The code point at `offset` of valid UTF-8; advances `offset` past it.
char32_t next_code_point(std::string_view text, std::size_t& offset);

std::size_t count_code_points(std::string_view text);
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
