#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

enum class TokenKind {
  kData,           // text between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // text is the value, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;

  bool is_name(std::string_view name) const { return kind == TokenKind::kName && text == name; }
  bool is_operator(std::string_view symbol) const { return kind == TokenKind::kOperator && text == symbol; }
};

// Splits a template as Jinja does with trim_blocks and lstrip_blocks on and keep_trailing_newline off. The
// last token is kEnd. Error with "where, line N".
std::vector<Token> lex(std::string_view source, std::string_view where);

}  // namespace quire::jinja
