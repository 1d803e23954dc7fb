#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_lexer.h"

namespace quire::jinja {

// The part of the parser that reads expressions, by recursive descent, and what statements share with it.
class ExpressionParser {
 protected:
  ExpressionParser(Template& result, std::vector<Token> tokens, const Limits& limits)
      : result_(result), tokens_(std::move(tokens)), limits_(limits) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, line {}: {}", result_.where, current().line, format_text(format, std::forward<Args>(args)...));
  }

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

  // A node whose height is one more than that of its highest child.
  template <typename Node>
  ExprPtr make(int line, Node node, std::initializer_list<const Expr*> children) {
    std::size_t height = 0;
    for (const Expr* child : children) {
      if (child != nullptr) height = std::max(height, child->height);
    }
    return finish(line, std::move(node), height);
  }
  template <typename Node>
  ExprPtr finish(int line, Node node, std::size_t height_below) {
    check_height(height_below);
    return std::make_unique<Expr>(Expr{line, height_below + 1, std::move(node)});
  }

  ExprPtr parse_expression();
  // One expression, or a tuple of several with commas between. `conditional`: may be `a if b else c`.
  ExprPtr parse_tuple(bool conditional, bool in_parentheses = false);
  // `input | filter | filter ...`; `first_bare`: the first filter's name comes without its bar.
  ExprPtr parse_filters(ExprPtr input, bool first_bare);

  // Bounds the recursion of the parser, and by it that of every walk over what it builds.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > parser_.limits_.max_nesting) {
        parser_.refuse("nested deeper than {}", parser_.limits_.max_nesting);
      }
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  class Restore {
   public:
    Restore(std::size_t& variable, std::size_t value)
        : variable_(variable), old_(std::exchange(variable, value)) {}
    ~Restore() { variable_ = old_; }
    Restore(const Restore&) = delete;
    Restore& operator=(const Restore&) = delete;

   private:
    std::size_t& variable_;
    const std::size_t old_;
  };

  struct Mentions {
    bool caller = false, varargs = false, kwargs = false;
  };

  Template& result_;
  Mentions mentions_;            // implicit variables mentioned since the innermost macro began
  std::size_t conditional_ = 0;  // conditions around the current place, where unknown filters are forgiven

 private:
  void check_height(std::size_t height_below) const;
  ExprPtr parse_conditional();
  template <typename Node, typename Operators, typename Parse>
  ExprPtr parse_chain(const Operators& operators, const Parse& parse_operand);
  template <typename Parse>
  void parse_separated(std::string_view close, const Parse& parse_item);
  ExprPtr parse_or();
  ExprPtr parse_and();
  ExprPtr parse_not();
  ExprPtr parse_compare();
  ExprPtr parse_sum();
  ExprPtr parse_concat();
  ExprPtr parse_product();
  ExprPtr parse_power();
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_primary();
  ExprPtr parse_postfix(ExprPtr node);
  ExprPtr parse_subscript(ExprPtr object, int line);
  ExprPtr parse_filters_and_tests(ExprPtr node);
  ExprPtr parse_test(ExprPtr input);
  ExprPtr parse_apply(bool is_test, ExprPtr input, std::string name, ArgumentExprs arguments, int line);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_strings();
  ExprPtr parse_number();
  ArgumentExprs parse_arguments();
  std::string take_dotted_name(std::string_view what);

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  const Limits& limits_;
  std::size_t nesting_ = 0;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace quire::jinja
