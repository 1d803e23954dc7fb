#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja_lexer.h"
#include "tokenizer/jinja_template.h"

namespace quire::jinja {

std::optional<Value> find_constant(std::string_view name);  // true, false and none

// The part of the parser that reads expressions, by recursive descent, and what statements share with it.
class ExpressionParser {
 protected:
  ExpressionParser(Template& result, std::vector<Token> tokens, const Limits& limits);

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, line {}: {}", result_.where, current().line, format_text(format, std::forward<Args>(args)...));
  }
  // Bounds the recursion of the parser; lasts as long as what it returns.
  [[nodiscard]] Restore<std::size_t> nest();

  const Token& current() const { return tokens_[at_]; }
  const Token& following() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }  // never past kEnd
  void expect(TokenKind kind, std::string_view what);
  void expect_operator(std::string_view symbol);
  // Take the current token if it is that one.
  bool accept_operator(std::string_view symbol);
  bool accept_name(std::string_view name);
  std::string take_name(std::string_view what);

  NameId intern(const std::string& name);
  Value make_text(std::string_view text) { return {&result_.literals.emplace_back(text, true)}; }
  // An expression of the template: `value` takes a Render and gives its value there.
  template <typename Evaluate>
  ExprPtr make(int line, Evaluate value) {
    return &result_.expressions.emplace_back(Expr{line, std::move(value)});
  }
  ExprPtr make_literal(int line, const Value& value) {
    return make(line, [value](Render&) { return value; });
  }

  ExprPtr parse_expression();  // it may be `a if b else c`
  // One expression, or a tuple of several with commas between.
  ExprPtr parse_tuple(bool conditional, bool in_parentheses = false);
  // `input | filter | filter ...`; `first_bare`: the first filter's name comes without its bar.
  ExprPtr parse_filters(ExprPtr input, bool first_bare);

  Template& result_;
  std::array<bool, kImplicitNames> mentions_ = {};  // since the innermost macro began
  std::size_t conditional_ = 0;  // conditions around the current place, where unknown filters are forgiven

 private:
  using Parse = ExprPtr (ExpressionParser::*)();

  template <typename Operators>
  ExprPtr parse_chain(const Operators& operators, Parse parse_operand);
  ExprPtr parse_logical(std::string_view word, Parse parse_operand);
  template <typename ParseItem>
  void parse_separated(std::string_view close, const ParseItem& parse_item);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_filtered_unary() { return parse_unary(true); }
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_strings();
  ExprPtr parse_number();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr object, int line);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_test(ExprPtr input);
  ArgumentExprs parse_arguments();
  ExprPtr make_applied(bool is_test, int line, const std::string& name, ExprPtr input,
                       ArgumentExprs arguments);
  ExprPtr make_not(int line, ExprPtr operand);
  ExprPtr make_list(int line, std::vector<ExprPtr> items, ListKind kind);
  ExprPtr make_item(int line, ExprPtr object, ExprPtr index);
  std::string take_dotted_name(std::string_view what);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  const Limits& limits_;
  std::size_t nesting_ = 0;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace quire::jinja
