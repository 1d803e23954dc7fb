#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja_value.h"

namespace quire::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;
struct Statement;
using Body = std::vector<Statement>;
using NameId = std::size_t;  // index into Template::names

struct ArgumentExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Literal {
  Value value;
};
struct Name {
  NameId id;
};
struct CapturedBlock {};  // the text of the block that a filter or set block wraps
struct Attribute {
  ExprPtr object;
  std::string name;
};
struct Item {
  ExprPtr object, index;
};
struct Slice {
  ExprPtr object, start, stop, step;  // null where absent
};
struct ListLiteral {
  std::vector<ExprPtr> items;
  ListKind kind;
};
struct DictLiteral {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
enum class UnaryOp { kNegative, kPositive, kNot };
struct Unary {
  UnaryOp op;
  ExprPtr operand;
};
enum class BinaryOp { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
struct Binary {
  BinaryOp op;
  ExprPtr left, right;
};
struct Concat {
  std::vector<ExprPtr> parts;
};
struct Logical {
  bool is_and;
  ExprPtr left, right;
};
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
struct Compare {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct Conditional {
  ExprPtr test, then, otherwise;  // otherwise may be null
};
struct Call {
  ExprPtr callee;
  ArgumentExprs arguments;
};
// A filter or a test. An unknown one under a condition is refused only when it is reached, as Jinja does.
struct Apply {
  bool is_test;
  std::string name;
  Native native;  // null if unknown
  ExprPtr input;
  ArgumentExprs arguments;
};

struct Expr {
  int line;
  std::size_t height;  // of the tree below, bounded by the parser
  std::variant<Literal, Name, CapturedBlock, Attribute, Item, Slice, ListLiteral, DictLiteral, Unary, Binary,
               Concat, Logical, Compare, Conditional, Call, Apply>
      node;
};

// What an assignment writes to: a name, name.attribute of a namespace, or (when `parts` is not empty) each in
// turn.
struct Target {
  NameId name = 0;
  std::string attribute;
  std::vector<Target> parts;
};

struct Data {
  Text text;
};
struct Output {
  ExprPtr value;
};
struct If {
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct For {
  Target target;
  ExprPtr iterable, condition;  // condition may be null
  Body body, otherwise;
};
struct Set {
  Target target;
  ExprPtr value;
};
struct SetBlock {
  Target target;
  ExprPtr filtered;  // CapturedBlock, or filters around it
  Body body;
};
struct FilterBlock {
  ExprPtr filtered;
  Body body;
};
struct With {
  std::vector<std::pair<Target, ExprPtr>> variables;
  Body body;
};
struct MacroDefinition {
  std::string name;
  NameId id = 0;
  std::vector<std::pair<NameId, ExprPtr>> parameters;  // with the default or null
  Body body;
  // Which of the implicit variables the body mentions: a macro takes such arguments only if it does.
  bool uses_caller = false, uses_varargs = false, uses_kwargs = false;
};
struct CallBlock {
  ExprPtr call;  // holds a Call
  MacroDefinition caller;
};
struct ScopedBlock {  // {% generation %}: only a scope of its own
  Body body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line;
  std::variant<Data, Output, If, For, Set, SetBlock, FilterBlock, With, MacroDefinition, CallBlock,
               ScopedBlock, Break, Continue>
      node;
};

struct Template {
  std::string where;
  std::vector<std::string> names;  // every variable the template mentions
  std::deque<Text> literals;       // what the string literals point to
  Body body;
};

// Error names `where` and the line: syntax, an unknown statement, filter or test, or a source beyond the
// limits.
Template parse_template(std::string_view source, std::string_view where, const Limits& limits);

// Runs a template. `variables`, by NameId, are what the context and the globals define. An Error names the
// template and the line, except for one that the template raised itself.
Text run_template(const Template& source, Runtime& runtime, std::vector<std::optional<Value>> variables);

}  // namespace quire::jinja
