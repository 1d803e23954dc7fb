#pragma once

#include <array>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja_builtins.h"

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

// Variables of a block; what is not found here is looked for in `parent`, and after the last in the
// template's own.
struct Scope {
  Scope* parent;
  std::vector<std::pair<NameId, Value>> variables;
};

// Runs a template: what the functions that the parser makes work on.
class Render : public Runtime {
 public:
  Render(const Template& source, const Limits& limits, const RenderOptions& options)
      : Runtime(limits, options), template_(source) {}

  // `variables`, by NameId, are what the context and the globals define. An Error names the template and the
  // line, except for one that the template raised itself.
  Text run(std::vector<std::optional<Value>> variables);

  Value evaluate(ExprPtr expr);  // null: None
  std::vector<Value> evaluate(const std::vector<ExprPtr>& exprs);
  Arguments evaluate(const ArgumentExprs& exprs);
  Flow execute(const Body& body);

  void write(const Value& value);
  Flow capture(const Body& body, Text& output);  // runs a body with its output going there

  const Value* find_variable(NameId id);  // null if nothing defines it
  Value variable(NameId id);              // undefined then
  void set_variable(NameId id, const Value& value);
  void set_attribute(NameId id, const Value& name, const Value& value);  // of a namespace

  // A fresh scope until the end of the block. Scopes live on, because macros may hold them.
  [[nodiscard]] Restore<Scope*> enter_scope() { return enter_scope(scope_); }

  Value make_macro(const Macro& macro) { return make(Callable{.macro = &macro, .scope = scope_}); }
  Value call(const Value& callee, const Arguments& arguments);

  Value captured;  // the text of the block that filters are applied to

 private:
  Value* find_in(Scope& scope, NameId id);  // null if it has no such variable itself
  [[nodiscard]] Restore<Scope*> enter_scope(Scope* parent);
  Value call_macro(const Callable& callable, Arguments arguments);

  const Template& template_;
  std::vector<std::optional<Value>> variables_;
  std::deque<Scope> scopes_;
  Scope* scope_ = nullptr;  // null outside of every block: variables_
  Text* out_ = nullptr;
  int line_ = 1;  // of what runs, for errors
};

}  // namespace quire::jinja
