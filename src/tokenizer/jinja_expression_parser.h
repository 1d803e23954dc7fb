#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_lexer.h"
#include "tokenizer/jinja_render.h"

namespace quire::jinja {

inline constexpr std::size_t kMaxNamedArguments = 256;

// The operators of each rank.
inline constexpr std::pair<std::string_view, Comparison*> kComparisons[] = {
    {"==", equal},  {"!=", not_equal},     {"<", less}, {"<=", less_equal},
    {">", greater}, {">=", greater_equal}, {"in", in}};
inline constexpr std::pair<std::string_view, Operator*> kSums[] = {{"+", add}, {"-", subtract}};
inline constexpr std::pair<std::string_view, Operator*> kProducts[] = {
    {"*", multiply}, {"/", divide}, {"//", floor_divide}, {"%", modulo}};
inline constexpr std::pair<std::string_view, Operator*> kPowers[] = {{"**", power}};

// Null if the token is none of the operators.
template <typename Operators>
auto find_operator(const Token& token, const Operators& operators) {
  const auto* found =
      std::ranges::find_if(operators, [&](const auto& candidate) { return token.is(candidate.first); });
  return found == std::end(operators) ? nullptr : found->second;
}

// True, false and none.
inline std::optional<Value> find_constant(std::string_view name) {
  if (name == "true" || name == "True") return Value{true};
  if (name == "false" || name == "False") return Value{false};
  if (name == "none" || name == "None") return Value{None{}};
  return std::nullopt;
}

// The part of the parser that reads expressions, by recursive descent, and what statements share with it.
// What it makes of each is a function for the render, so its grammar and its meaning stand together.
class ExpressionParser : protected TokenReader {
 protected:
  ExpressionParser(Template& result, std::vector<Token> tokens, const Limits& limits)
      : TokenReader(std::move(tokens), result.where), result_(result), limits_(limits) {
    for (const char* implicit : {"loop", "caller", "kwargs", "varargs"}) intern(implicit);  // by ImplicitName
  }

  // Bounds the recursion of the parser; lasts as long as what it returns.
  [[nodiscard]] Restore<std::size_t> nest() {
    if (nesting_ >= limits_.max_nesting) refuse("nested deeper than {}", limits_.max_nesting);
    return Restore(nesting_, nesting_ + 1);
  }

  NameId intern(const std::string& name) {
    const auto [entry, added] = name_ids_.try_emplace(name, result_.names.size());
    if (added) result_.names.push_back(name);
    return entry->second;
  }

  Value make_text(std::string_view text) { return {&result_.literals.emplace_back(text, true)}; }
  // An expression of the template: `value` takes a Render and gives its value there. The line is for errors,
  // which have that of what was evaluated last.
  template <typename Evaluate>
  ExprPtr make(int line, Evaluate value) {
    return &result_.expressions.emplace_back(Expr{line, std::move(value)});
  }
  // The same: `value` takes the values of the operands, too, which are evaluated in order; there is at least
  // one, and the first gives the line.
  template <std::size_t N, typename Apply>
  ExprPtr make_of(const ExprPtr (&operands)[N], Apply value) {
    return make(operands[0]->line,
                [operands = std::to_array(operands), value = std::move(value)](Render& run) {
                  std::array<Value, N> values;
                  for (std::size_t i = 0; i < N; ++i) values[i] = run.evaluate(operands[i]);
                  return value(run, values);
                });
  }
  ExprPtr make_literal(int line, const Value& value) {
    return make(line, [value](Render&) { return value; });
  }

  // One expression, or a tuple of several with commas between.
  ExprPtr parse_tuple(bool conditional, bool in_parentheses = false) {
    const int line = current().line;
    std::vector<ExprPtr> items;
    bool is_tuple = false;
    const auto at_end = [&] {
      return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
             current().is(")");
    };
    while (!at_end()) {
      items.push_back(conditional ? parse_expression() : parse_or());
      if (!accept(",")) break;
      is_tuple = true;
    }
    if (!is_tuple && !items.empty()) return items[0];
    if (items.empty() && !in_parentheses) refuse("expected an expression, found '{}'", current().text);
    return make_list(line, std::move(items), ListKind::kTuple);
  }

  // It may be `a if b else c`.
  ExprPtr parse_expression() {
    const auto nesting = nest();
    ExprPtr then = parse_or();
    while (accept("if")) {
      const Restore conditional(conditional_, conditional_ + 1);
      const ExprPtr test = parse_or();
      const ExprPtr otherwise = accept("else") ? parse_expression() : nullptr;
      then = make(test->line, [=](Render& run) {
        if (truth(run.evaluate(test))) return run.evaluate(then);
        if (otherwise != nullptr) return run.evaluate(otherwise);
        return run.undefined("the condition is false and there is no else part");
      });
    }
    return then;
  }

  // A filter with its arguments, behind its bar.
  ExprPtr parse_filter(ExprPtr input) {
    const int line = current().line;
    const std::string name = take_dotted_name("a filter");
    ArgumentExprs arguments;
    if (current().is("(")) arguments = parse_arguments();
    return make_applied(false, line, name, input, std::move(arguments));
  }

  Template& result_;
  std::array<bool, kImplicitNames> mentions_ = {};  // since the innermost macro began
  std::size_t conditional_ = 0;  // conditions around the current place, where unknown filters are forgiven

 private:
  template <typename Parse>
  ExprPtr parse_logical(std::string_view word, const Parse& parse_operand) {
    const bool is_and = word == "and";
    ExprPtr left = parse_operand();
    while (accept(word)) {
      const ExprPtr right = parse_operand();
      left = make(left->line, [=](Render& run) {
        const Value value = run.evaluate(left);
        return truth(value) == is_and ? run.evaluate(right) : value;
      });
    }
    return left;
  }

  ExprPtr parse_or() {
    return parse_logical("or", [this] { return parse_logical("and", [this] { return parse_not(); }); });
  }

  ExprPtr parse_not() {
    if (!current().is("not")) return parse_compare();
    const auto nesting = nest();
    take();
    return make_not(parse_not());
  }

  ExprPtr make_not(ExprPtr operand) {
    return make_of({operand}, [](Render&, const auto& values) { return Value{!truth(values[0])}; });
  }

  ExprPtr parse_compare() {
    const ExprPtr first = parse_sum();
    std::vector<std::pair<Comparison*, ExprPtr>> rest;
    while (true) {
      const bool negated = current().is("not") && following().is("in");
      if (negated) take();
      const auto compare = find_operator(current(), kComparisons);
      if (compare == nullptr) break;
      take();
      rest.emplace_back(negated ? not_in : compare, parse_sum());
    }
    if (rest.empty()) return first;
    return make(first->line, [first, rest = std::move(rest)](Render& run) {
      Value left = run.evaluate(first);
      for (const auto& [compare, expr] : rest) {
        const Value right = run.evaluate(expr);
        if (!compare(run, left, right)) return Value{false};
        left = right;
      }
      return Value{true};
    });
  }

  // Operands with operators of one rank between, grouped from the left.
  template <typename Operators, typename Parse>
  ExprPtr parse_chain(const Operators& operators, const Parse& parse_operand) {
    ExprPtr left = parse_operand();
    while (const auto apply = find_operator(current(), operators)) {
      take();
      left = make_of({left, parse_operand()},
                     [apply](Render& run, const auto& values) { return apply(run, values[0], values[1]); });
    }
    return left;
  }

  ExprPtr parse_sum() {
    return parse_chain(kSums, [this] { return parse_concat(); });
  }
  ExprPtr parse_product() {
    return parse_chain(kProducts, [this] { return parse_power(); });
  }
  // From the left, unlike Python's: Jinja reads 2 ** 3 ** 2 as (2 ** 3) ** 2, and -2 ** 2 as (-2) ** 2.
  ExprPtr parse_power() {
    return parse_chain(kPowers, [this] { return parse_unary(true); });
  }

  ExprPtr parse_concat() {
    std::vector<ExprPtr> parts = {parse_product()};
    while (accept("~")) parts.push_back(parse_product());
    if (parts.size() == 1) return parts[0];
    const int line = parts[0]->line;
    return make(line, [parts = std::move(parts)](Render& run) {
      Text text;
      for (ExprPtr part : parts) {
        const Text& piece = text_of(run, run.evaluate(part));
        run.charge(piece.memory());
        text.append(piece);
      }
      return run.make(std::move(text));
    });
  }

  ExprPtr parse_unary(bool with_filters) {
    const auto nesting = nest();
    ExprPtr node = nullptr;
    if (current().is("-") || current().is("+")) {
      const bool negative = take().text == "-";
      node = make_of({parse_unary(false)},
                     [negative](Render&, const auto& values) { return with_sign(values[0], negative); });
    } else {
      node = parse_primary();
    }
    node = parse_postfix(node);
    return with_filters ? parse_filters_and_tests(node) : node;
  }

  ExprPtr parse_primary() {
    const TokenKind kind = current().kind;
    if (kind == TokenKind::kName) return parse_name();
    if (kind == TokenKind::kString) return parse_strings();
    if (kind == TokenKind::kNumber) return parse_number();
    if (current().is("[")) return parse_list();
    if (current().is("{")) return parse_dict();
    if (!accept("(")) refuse("expected an expression, found '{}'", current().text);
    const ExprPtr inner = parse_tuple(true, true);
    expect(")");
    return inner;
  }

  ExprPtr parse_name() {
    const auto& [kind, line, name] = take();
    if (const std::optional<Value> constant = find_constant(name)) return make_literal(line, *constant);
    const NameId id = intern(name);
    if (id < kImplicitNames) mentions_[id] = true;
    return make(line, [id](Render& run) { return run.variable(id); });
  }

  ExprPtr parse_strings() {
    const int line = current().line;
    std::string value;
    while (current().kind == TokenKind::kString) value += take().text;
    return make_literal(line, make_text(value));
  }

  ExprPtr parse_number() {
    const Token& token = take();
    const auto literal = [&](auto number) {
      const char* const begin = token.text.data();
      if (std::from_chars(begin, begin + token.text.size(), number).ec != std::errc{})
        refuse("the number {} is out of range", token.text);
      return make_literal(token.line, {number});
    };
    return token.is_float() ? literal(0.0) : literal(std::int64_t{0});
  }

  // What stands up to `close`, which is taken, with commas between; a comma may come last.
  template <typename ParseItem>
  void parse_separated(std::string_view close, const ParseItem& parse_item) {
    for (bool first = true; !accept(close); first = false) {
      if (!first) {
        expect(",");
        if (accept(close)) return;
      }
      parse_item();
    }
  }

  ExprPtr parse_list() {
    const int line = take().line;
    std::vector<ExprPtr> items;
    parse_separated("]", [&] { items.push_back(parse_expression()); });
    return make_list(line, std::move(items), ListKind::kList);
  }

  ExprPtr make_list(int line, std::vector<ExprPtr> items, ListKind kind) {
    return make(
        line, [items = std::move(items), kind](Render& run) { return run.make(run.evaluate(items), kind); });
  }

  ExprPtr parse_dict() {
    const int line = take().line;
    std::vector<ExprPtr> parts;  // keys and values in turn
    parse_separated("}", [&] {
      parts.push_back(parse_expression());
      expect(":");
      parts.push_back(parse_expression());
    });
    return make(line, [parts = std::move(parts)](Render& run) {
      Items items;
      for (std::size_t i = 0; i < parts.size(); i += 2) {
        const Value key = run.evaluate(parts[i]);
        set_key(run, items, key, run.evaluate(parts[i + 1]));
      }
      return run.make(std::move(items));
    });
  }

  ExprPtr parse_postfix(ExprPtr node) {
    while (true) {
      if (current().is("(")) {
        node = parse_call(node);
      } else if (accept("[")) {
        node = parse_subscript(node);
      } else if (!accept(".")) {
        return node;
      } else if (current().kind == TokenKind::kNumber && !current().is_float()) {
        node = make_item(node, parse_number());
      } else {
        node = make_of({node}, [name = take_name("an attribute")](Render& run, const auto& values) {
          return get_attribute(run, values[0], name);
        });
      }
    }
  }

  ExprPtr make_item(ExprPtr object, ExprPtr index) {
    return make_of({object, index},
                   [](Render& run, const auto& values) { return get_item(run, values[0], values[1]); });
  }

  ExprPtr parse_subscript(ExprPtr object) {
    std::array<ExprPtr, 3> parts = {};  // start, stop, step
    std::size_t colons = 0;
    while (!accept("]")) {
      if (colons < 2 && accept(":")) {
        ++colons;
      } else if (parts[colons] == nullptr) {
        parts[colons] = parse_expression();
      } else {
        refuse("expected ']', found '{}'", current().text);
      }
    }
    if (colons == 0) {
      if (parts[0] == nullptr) refuse("an index is missing between '[' and ']'");
      return make_item(object, parts[0]);
    }
    return make_of({object, parts[0], parts[1], parts[2]}, [](Render& run, const auto& values) {
      return slice(run, values[0], values[1], values[2], values[3]);
    });
  }

  ExprPtr parse_call(ExprPtr callee) {
    ArgumentExprs* arguments = &result_.arguments.emplace_back(parse_arguments());
    const ExprPtr node = make(callee->line, [callee, arguments](Render& run) {
      const Value called = run.evaluate(callee);
      return run.call(called, run.evaluate(*arguments));
    });
    result_.expressions.back().arguments = arguments;
    return node;
  }

  ExprPtr parse_filters_and_tests(ExprPtr node) {
    while (true) {
      if (accept("|")) {
        node = parse_filter(node);
      } else if (current().is("is")) {
        node = parse_test(node);
      } else if (current().is("(")) {
        node = parse_call(node);
      } else {
        return node;
      }
    }
  }

  ExprPtr parse_test(ExprPtr input) {
    const int line = take().line;
    const bool negated = accept("not");
    const std::string name = take_dotted_name("a test");
    ArgumentExprs arguments;
    const Token& next = current();
    const bool starts_value =
        (next.kind >= TokenKind::kName && next.kind <= TokenKind::kNumber) || next.is("[") || next.is("{");
    if (next.is("(")) {
      arguments = parse_arguments();
    } else if (starts_value && !next.is("else") && !next.is("or") && !next.is("and")) {
      if (next.is("is")) refuse("tests with 'is' cannot be chained");
      const auto nesting = nest();
      arguments.positional.push_back(parse_postfix(parse_primary()));
    }
    const ExprPtr node = make_applied(true, line, name, input, std::move(arguments));
    return negated ? make_not(node) : node;
  }

  // A filter or a test. An unknown one under a condition is refused only when it is reached, as Jinja does.
  ExprPtr make_applied(bool is_test, int line, const std::string& name, ExprPtr input,
                       ArgumentExprs arguments) {
    const char* kind = is_test ? "test" : "filter";
    const Builtin* builtin = is_test ? find_test(name) : find_filter(name);
    if (builtin == nullptr && conditional_ == 0) refuse("no {} is named '{}'", kind, name);
    if (builtin == nullptr)
      return make(line, [=](Render&) -> Value { fail("no {} is named '{}'", kind, name); });
    return make(line, [builtin, input, arguments = std::move(arguments)](Render& run) {
      const Value value = run.evaluate(input);
      return invoke(run, *builtin, value, run.evaluate(arguments));
    });
  }

  ArgumentExprs parse_arguments() {
    expect("(");
    ArgumentExprs arguments;
    parse_separated(")", [&] {
      if (current().is("*") || current().is("**"))
        refuse("arguments spread with '{}' are not supported", current().text);
      if (current().kind == TokenKind::kName && following().is("=")) {
        const Value name = make_text(take().text);
        take();
        if (arguments.named.size() >= kMaxNamedArguments)
          refuse("more than {} named arguments", kMaxNamedArguments);
        const auto same = [&](const auto& argument) {
          return argument.first.text()->bytes() == name.text()->bytes();
        };
        if (std::ranges::any_of(arguments.named, same))
          refuse("argument '{}' is repeated", name.text()->bytes());
        arguments.named.emplace_back(name, parse_expression());
      } else {
        if (!arguments.named.empty()) refuse("a positional argument follows a named one");
        arguments.positional.push_back(parse_expression());
      }
    });
    return arguments;
  }

  std::string take_dotted_name(std::string_view what) {
    std::string name = take_name(what);
    while (accept(".")) name += "." + take_name(what);
    return name;
  }

  const Limits& limits_;
  std::size_t nesting_ = 0;
  std::unordered_map<std::string, NameId> name_ids_;
};

}  // namespace quire::jinja
