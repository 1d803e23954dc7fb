#pragma once

#include <array>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja_value.h"

namespace quire::jinja {

class Render;

// What the parser makes of an expression: a function that gives its value in a render.
struct Expr {
  int line;
  std::function<Value(Render&)> value;
  struct ArgumentExprs* arguments = nullptr;  // if it is a call
};
using ExprPtr = const Expr*;  // the Template owns it

struct ArgumentExprs {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<Value, ExprPtr>> named;
};

// What follows a statement: the next one, or what ends a round of a loop.
enum class Flow { kNext, kBreak, kContinue };

struct Statement {
  int line;
  std::function<Flow(Render&)> run;
};
using Body = std::vector<Statement>;

using NameId = std::size_t;  // index into Template::names
// The variables that Jinja itself defines come first.
enum ImplicitName : NameId { kLoop, kCaller, kKwargs, kVarargs, kImplicitNames };

// An assignment, to one variable or to several.
using Assign = std::function<void(Render&, const Value&)>;

struct Macro {
  std::string name;
  std::vector<std::pair<NameId, ExprPtr>> parameters;  // with the default or null
  Body body;
  // The implicit variables that the body mentions: a macro takes such arguments only if it does.
  std::array<bool, kImplicitNames> mentions = {};
};

struct Template {
  std::string where;
  std::vector<std::string> names;  // of every variable
  std::deque<Text> literals;       // the text between tags, and what string literals point to
  std::deque<Expr> expressions;
  std::deque<ArgumentExprs> arguments;
  std::deque<Macro> macros;
  Body body;
};

// Error names `where` and the line: syntax, an unknown statement, filter or test, or a source beyond the
// limits.
Template parse_template(std::string_view source, std::string_view where, const Limits& limits);

}  // namespace quire::jinja
