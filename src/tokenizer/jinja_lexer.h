#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace quire::jinja {

enum class TokenKind {
  kData,           // text between tags
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kName,
  kString,  // text is the value, escapes resolved
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;

  bool is(std::string_view name_or_operator) const {
    return (kind == TokenKind::kName || kind == TokenKind::kOperator) && text == name_or_operator;
  }
  bool is_float() const { return text.find_first_of(".eE") != text.npos; }  // of a number
};

// Splits a template as Jinja does with trim_blocks and lstrip_blocks on and keep_trailing_newline off. The
// last token is kEnd. Error with "where, line N".
std::vector<Token> lex(std::string_view source, std::string_view where);

// Goes through the tokens of a template.
class TokenReader {
 protected:
  TokenReader(std::vector<Token> tokens, std::string_view where)
      : tokens_(std::move(tokens)), where_(where) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, line {}: {}", where_, current().line, format_text(format, std::forward<Args>(args)...));
  }

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }  // never past kEnd

  const Token& take(TokenKind kind, std::string_view what) {
    if (current().kind != kind) refuse("expected {}, found '{}'", what, current().text);
    return take();
  }
  const std::string& take_name(std::string_view what) { return take(TokenKind::kName, what).text; }

  // Takes the current token if it is that name or operator.
  bool accept(std::string_view text) {
    const bool found = current().is(text);
    if (found) take();
    return found;
  }
  void expect(std::string_view text) {
    if (!accept(text)) refuse("expected '{}', found '{}'", text, current().text);
  }

 private:
  const std::vector<Token> tokens_;
  const std::string_view where_;
  std::size_t at_ = 0;
};

}  // namespace quire::jinja
