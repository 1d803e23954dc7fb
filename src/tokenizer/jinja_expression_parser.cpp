#include "tokenizer/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "tokenizer/jinja_builtins.h"

namespace quire::jinja {
namespace {

// Chains such as a + b + c + ... build high trees without nesting, so their height has a bound of its own.
constexpr std::size_t kMaxHeight = 256;
constexpr std::size_t kMaxNamedArguments = 256;

std::size_t height_of(const std::vector<ExprPtr>& items) {
  std::size_t height = 0;
  for (const ExprPtr& item : items) height = std::max(height, item->height);
  return height;
}

std::size_t height_of(const ArgumentExprs& arguments) {
  std::size_t height = height_of(arguments.positional);
  for (const auto& [name, value] : arguments.named) height = std::max(height, value->height);
  return height;
}

// The operators of one rank.
template <typename Op>
using Operator = std::pair<std::string_view, Op>;
constexpr Operator<bool> kOr[] = {{"or", false}};
constexpr Operator<bool> kAnd[] = {{"and", true}};
constexpr Operator<CompareOp> kComparisons[] = {{"==", CompareOp::kEqual},  {"!=", CompareOp::kNotEqual},
                                                {"<", CompareOp::kLess},    {"<=", CompareOp::kLessEqual},
                                                {">", CompareOp::kGreater}, {">=", CompareOp::kGreaterEqual},
                                                {"in", CompareOp::kIn}};
constexpr Operator<BinaryOp> kSums[] = {{"+", BinaryOp::kAdd}, {"-", BinaryOp::kSubtract}};
constexpr Operator<BinaryOp> kProducts[] = {{"*", BinaryOp::kMultiply},
                                            {"/", BinaryOp::kDivide},
                                            {"//", BinaryOp::kFloorDivide},
                                            {"%", BinaryOp::kModulo}};
constexpr Operator<BinaryOp> kPowers[] = {{"**", BinaryOp::kPower}};

// Null if the token is none of the operators.
template <typename Op, std::size_t N>
const Op* find_operator(const Token& token, const Operator<Op> (&operators)[N]) {
  for (const auto& [text, op] : operators) {
    if (token.is_operator(text) || token.is_name(text)) return &op;
  }
  return nullptr;
}

}  // namespace

void ExpressionParser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) refuse("expected {}, found '{}'", what, current().text);
  take();
}

void ExpressionParser::expect_operator(std::string_view symbol) {
  if (!current().is_operator(symbol)) refuse("expected '{}', found '{}'", symbol, current().text);
  take();
}

bool ExpressionParser::accept_operator(std::string_view symbol) {
  const bool found = current().is_operator(symbol);
  if (found) take();
  return found;
}

bool ExpressionParser::accept_name(std::string_view name) {
  const bool found = current().is_name(name);
  if (found) take();
  return found;
}

std::string ExpressionParser::take_name(std::string_view what) {
  if (current().kind != TokenKind::kName) refuse("expected {}, found '{}'", what, current().text);
  return take().text;
}

NameId ExpressionParser::intern(const std::string& name) {
  const auto [entry, added] = name_ids_.try_emplace(name, result_.names.size());
  if (added) result_.names.push_back(name);
  return entry->second;
}

void ExpressionParser::check_height(std::size_t height_below) const {
  if (height_below >= kMaxHeight) refuse("an expression is built of more than {} steps in a row", kMaxHeight);
}

ExprPtr ExpressionParser::parse_expression() { return parse_conditional(); }

ExprPtr ExpressionParser::parse_tuple(bool conditional, bool in_parentheses) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  const auto at_end = [&] {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd ||
           current().is_operator(")");
  };
  while (!at_end()) {
    items.push_back(conditional ? parse_conditional() : parse_or());
    if (!accept_operator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (items.empty() && !in_parentheses) refuse("expected an expression, found '{}'", current().text);
  const std::size_t height = height_of(items);
  return finish(line, ListLiteral{std::move(items), ListKind::kTuple}, height);
}

ExprPtr ExpressionParser::parse_conditional() {
  const Nesting nesting(*this);
  const int line = current().line;
  const std::size_t before = conditional_;
  ExprPtr then = parse_or();
  while (accept_name("if")) {
    conditional_ = before + 1;
    ExprPtr test = parse_or();
    ExprPtr otherwise;
    if (accept_name("else")) otherwise = parse_conditional();
    conditional_ = before;
    const std::initializer_list<const Expr*> children = {test.get(), then.get(), otherwise.get()};
    then = make(line, Conditional{std::move(test), std::move(then), std::move(otherwise)}, children);
  }
  return then;
}

// Operands with operators of one rank between, grouped from the left.
template <typename Node, typename Operators, typename Parse>
ExprPtr ExpressionParser::parse_chain(const Operators& operators, const Parse& parse_operand) {
  const int line = current().line;
  ExprPtr left = parse_operand();
  while (const auto* op = find_operator(current(), operators)) {
    take();
    ExprPtr right = parse_operand();
    const std::initializer_list<const Expr*> children = {left.get(), right.get()};
    left = make(line, Node{*op, std::move(left), std::move(right)}, children);
  }
  return left;
}

ExprPtr ExpressionParser::parse_or() {
  return parse_chain<Logical>(kOr, [this] { return parse_and(); });
}

ExprPtr ExpressionParser::parse_and() {
  return parse_chain<Logical>(kAnd, [this] { return parse_not(); });
}

ExprPtr ExpressionParser::parse_not() {
  if (!current().is_name("not")) return parse_compare();
  const Nesting nesting(*this);
  const int line = take().line;
  ExprPtr operand = parse_not();
  const Expr* child = operand.get();
  return make(line, Unary{UnaryOp::kNot, std::move(operand)}, {child});
}

ExprPtr ExpressionParser::parse_compare() {
  const int line = current().line;
  ExprPtr first = parse_sum();
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
  std::size_t height = first->height;
  while (true) {
    const bool negated = current().is_name("not") && following().is_name("in");
    if (negated) take();
    const CompareOp* op = find_operator(current(), kComparisons);
    if (op == nullptr) break;
    take();
    rest.emplace_back(negated ? CompareOp::kNotIn : *op, parse_sum());
    height = std::max(height, rest.back().second->height);
  }
  return rest.empty() ? std::move(first) : finish(line, Compare{std::move(first), std::move(rest)}, height);
}

ExprPtr ExpressionParser::parse_sum() {
  return parse_chain<Binary>(kSums, [this] { return parse_concat(); });
}

ExprPtr ExpressionParser::parse_concat() {
  const int line = current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(parse_product());
  while (accept_operator("~")) parts.push_back(parse_product());
  if (parts.size() == 1) return std::move(parts[0]);
  const std::size_t height = height_of(parts);
  return finish(line, Concat{std::move(parts)}, height);
}

ExprPtr ExpressionParser::parse_product() {
  return parse_chain<Binary>(kProducts, [this] { return parse_power(); });
}

// From the left, unlike Python's: Jinja reads 2 ** 3 ** 2 as (2 ** 3) ** 2, and -2 ** 2 as (-2) ** 2.
ExprPtr ExpressionParser::parse_power() {
  return parse_chain<Binary>(kPowers, [this] { return parse_unary(true); });
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExprPtr node;
  if (current().is_operator("-") || current().is_operator("+")) {
    const UnaryOp op = take().text == "-" ? UnaryOp::kNegative : UnaryOp::kPositive;
    ExprPtr operand = parse_unary(false);
    const Expr* child = operand.get();
    node = make(line, Unary{op, std::move(operand)}, {child});
  } else {
    node = parse_primary();
  }
  node = parse_postfix(std::move(node));
  return with_filters ? parse_filters_and_tests(std::move(node)) : std::move(node);
}

ExprPtr ExpressionParser::parse_primary() {
  const int line = current().line;
  switch (current().kind) {
    case TokenKind::kName: {
      const std::string name = take().text;
      if (name == "true" || name == "True") return make(line, Literal{{true}}, {});
      if (name == "false" || name == "False") return make(line, Literal{{false}}, {});
      if (name == "none" || name == "None") return make(line, Literal{{None{}}}, {});
      mentions_.caller |= name == "caller";
      mentions_.varargs |= name == "varargs";
      mentions_.kwargs |= name == "kwargs";
      return make(line, Name{intern(name)}, {});
    }
    case TokenKind::kString:
      return parse_strings();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return parse_number();
    default:
      break;
  }
  if (current().is_operator("[")) return parse_list();
  if (current().is_operator("{")) return parse_dict();
  if (!accept_operator("(")) refuse("expected an expression, found '{}'", current().text);
  ExprPtr inner = parse_tuple(true, true);
  expect_operator(")");
  return inner;
}

ExprPtr ExpressionParser::parse_strings() {
  const int line = current().line;
  std::string value;
  while (current().kind == TokenKind::kString) value += take().text;
  const Text* text = &result_.literals.emplace_back(value, true);
  return make(line, Literal{{text}}, {});
}

ExprPtr ExpressionParser::parse_number() {
  const Token& token = take();
  const auto literal = [&](auto number) {
    const char* const begin = token.text.data();
    if (std::from_chars(begin, begin + token.text.size(), number).ec != std::errc{})
      refuse("the number {} is out of range", token.text);
    return make(token.line, Literal{{number}}, {});
  };
  return token.kind == TokenKind::kFloat ? literal(0.0) : literal(std::int64_t{0});
}

// What stands up to `close`, which is taken, with commas between; a comma may come last.
template <typename Parse>
void ExpressionParser::parse_separated(std::string_view close, const Parse& parse_item) {
  for (bool first = true; !accept_operator(close); first = false) {
    if (!first) {
      expect_operator(",");
      if (accept_operator(close)) return;
    }
    parse_item();
  }
}

ExprPtr ExpressionParser::parse_list() {
  const int line = take().line;
  std::vector<ExprPtr> items;
  parse_separated("]", [&] { items.push_back(parse_expression()); });
  const std::size_t height = height_of(items);
  return finish(line, ListLiteral{std::move(items), ListKind::kList}, height);
}

ExprPtr ExpressionParser::parse_dict() {
  const int line = take().line;
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
  std::size_t height = 0;
  parse_separated("}", [&] {
    ExprPtr key = parse_expression();
    expect_operator(":");
    ExprPtr value = parse_expression();
    height = std::max({height, key->height, value->height});
    items.emplace_back(std::move(key), std::move(value));
  });
  return finish(line, DictLiteral{std::move(items)}, height);
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr node) {
  while (true) {
    const int line = current().line;
    if (accept_operator(".")) {
      const Expr* child = node.get();
      if (current().kind == TokenKind::kInteger) {
        ExprPtr index = parse_number();
        node = make(line, Item{std::move(node), std::move(index)}, {child});
      } else {
        node = make(line, Attribute{std::move(node), take_name("an attribute")}, {child});
      }
    } else if (accept_operator("[")) {
      node = parse_subscript(std::move(node), line);
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object, int line) {
  ExprPtr parts[3];  // start, stop, step
  std::size_t colons = 0;
  while (!accept_operator("]")) {
    if (colons < 2 && accept_operator(":")) {
      ++colons;
    } else if (parts[colons] == nullptr) {
      parts[colons] = parse_expression();
    } else {
      refuse("expected ']', found '{}'", current().text);
    }
  }
  const std::initializer_list<const Expr*> children = {object.get(), parts[0].get(), parts[1].get(),
                                                       parts[2].get()};
  if (colons > 0) {
    return make(line, Slice{std::move(object), std::move(parts[0]), std::move(parts[1]), std::move(parts[2])},
                children);
  }
  if (parts[0] == nullptr) refuse("an index is missing between '[' and ']'");
  return make(line, Item{std::move(object), std::move(parts[0])}, children);
}

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr node) {
  while (true) {
    if (current().is_operator("|")) {
      node = parse_filters(std::move(node), false);
    } else if (current().is_name("is")) {
      node = parse_test(std::move(node));
    } else if (current().is_operator("(")) {
      node = parse_call(std::move(node));
    } else {
      return node;
    }
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr input, bool first_bare) {
  while (first_bare || current().is_operator("|")) {
    if (!first_bare) take();
    first_bare = false;
    const int line = current().line;
    std::string name = take_dotted_name("a filter");
    ArgumentExprs arguments;
    if (current().is_operator("(")) arguments = parse_arguments();
    input = parse_apply(false, std::move(input), std::move(name), std::move(arguments), line);
  }
  return input;
}

ExprPtr ExpressionParser::parse_test(ExprPtr input) {
  const int line = take().line;
  const bool negated = accept_name("not");
  std::string name = take_dotted_name("a test");
  ArgumentExprs arguments;
  const Token& next = current();
  const bool starts_value = next.kind == TokenKind::kName || next.kind == TokenKind::kString ||
                            next.kind == TokenKind::kInteger || next.kind == TokenKind::kFloat ||
                            next.is_operator("[") || next.is_operator("{");
  if (next.is_operator("(")) {
    arguments = parse_arguments();
  } else if (starts_value && !next.is_name("else") && !next.is_name("or") && !next.is_name("and")) {
    if (next.is_name("is")) refuse("tests with 'is' cannot be chained");
    const Nesting nesting(*this);
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  ExprPtr node = parse_apply(true, std::move(input), std::move(name), std::move(arguments), line);
  if (!negated) return node;
  const Expr* child = node.get();
  return make(line, Unary{UnaryOp::kNot, std::move(node)}, {child});
}

ExprPtr ExpressionParser::parse_apply(bool is_test, ExprPtr input, std::string name, ArgumentExprs arguments,
                                      int line) {
  const Native native = is_test ? find_test(name) : find_filter(name);
  if (native == nullptr && conditional_ == 0)
    refuse("no {} is named '{}'", is_test ? "test" : "filter", name);
  const std::size_t height = std::max(input->height, height_of(arguments));
  return finish(line, Apply{is_test, std::move(name), native, std::move(input), std::move(arguments)},
                height);
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  const int line = current().line;
  ArgumentExprs arguments = parse_arguments();
  const std::size_t height = std::max(callee->height, height_of(arguments));
  return finish(line, Call{std::move(callee), std::move(arguments)}, height);
}

ArgumentExprs ExpressionParser::parse_arguments() {
  expect_operator("(");
  ArgumentExprs arguments;
  parse_separated(")", [&] {
    if (current().is_operator("*") || current().is_operator("**")) {
      refuse("arguments spread with '{}' are not supported", current().text);
    }
    if (current().kind == TokenKind::kName && following().is_operator("=")) {
      std::string name = take().text;
      take();
      if (arguments.named.size() >= kMaxNamedArguments)
        refuse("more than {} named arguments", kMaxNamedArguments);
      const auto same = [&](const auto& argument) { return argument.first == name; };
      if (std::any_of(arguments.named.begin(), arguments.named.end(), same))
        refuse("argument '{}' is repeated", name);
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (!arguments.named.empty()) refuse("a positional argument follows a named one");
      arguments.positional.push_back(parse_expression());
    }
  });
  return arguments;
}

std::string ExpressionParser::take_dotted_name(std::string_view what) {
  std::string name = take_name(what);
  while (accept_operator(".")) name += "." + take_name(what);
  return name;
}

}  // namespace quire::jinja
