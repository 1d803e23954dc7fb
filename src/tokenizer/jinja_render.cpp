#include "tokenizer/jinja_render.h"

#include <algorithm>

namespace quire::jinja {
namespace {

std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
  for (auto argument = arguments.named.begin(); argument != arguments.named.end(); ++argument) {
    if (argument->first.text()->bytes() != name) continue;
    const Value value = argument->second;
    arguments.named.erase(argument);
    return value;
  }
  return std::nullopt;
}

}  // namespace

Text Render::run(std::vector<std::optional<Value>> variables) {
  variables_ = std::move(variables);
  Text output;
  try {
    capture(template_.body, output);
  } catch (const RaisedByTemplate&) {
    throw;
  } catch (const Error& error) {
    fail("{}, line {}: {}", template_.where, line_, error.what());
  }
  return output;
}

Value Render::evaluate(ExprPtr expr) {
  if (expr == nullptr) return {None{}};
  const auto depth = descend();
  line_ = expr->line;
  charge();
  return expr->value(*this);
}

std::vector<Value> Render::evaluate(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (ExprPtr expr : exprs) values.push_back(evaluate(expr));
  return values;
}

Arguments Render::evaluate(const ArgumentExprs& exprs) {
  Arguments arguments{evaluate(exprs.positional), {}};
  for (const auto& [name, expr] : exprs.named) arguments.named.emplace_back(name, evaluate(expr));
  return arguments;
}

Flow Render::execute(const Body& body) {
  const auto depth = descend();
  for (const Statement& statement : body) {
    line_ = statement.line;
    charge();
    if (const Flow flow = statement.run(*this); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

void Render::write(const Value& value) {
  const Text& text = text_of(*this, value);
  if (text.size() > limits().max_output_bytes - out_->size())
    fail("the output is longer than {} bytes", limits().max_output_bytes);
  charge(text.memory());
  out_->append(text);
}

Flow Render::capture(const Body& body, Text& output) {
  const Restore redirected(out_, &output);
  return execute(body);
}

Value* Render::find_in(Scope& scope, NameId id) {
  charge(scope.variables.size() * 4);
  const auto found = std::ranges::find(scope.variables, id, &std::pair<NameId, Value>::first);
  return found == scope.variables.end() ? nullptr : &found->second;
}

const Value* Render::find_variable(NameId id) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent)
    if (const Value* value = find_in(*scope, id)) return value;
  return variables_[id] ? &*variables_[id] : nullptr;
}

Value Render::variable(NameId id) {
  const Value* value = find_variable(id);
  return value != nullptr ? *value : undefined("'" + template_.names[id] + "' is undefined");
}

void Render::set_variable(NameId id, const Value& value) {
  if (scope_ == nullptr) {
    variables_[id] = value;
  } else if (Value* known = find_in(*scope_, id)) {
    *known = value;
  } else {
    scope_->variables.emplace_back(id, value);
  }
}

void Render::set_attribute(NameId id, const Value& name, const Value& value) {
  const Value* object = find_variable(id);
  Namespace* space = object == nullptr ? nullptr : object->pointer<Namespace>();
  if (space == nullptr) fail("'{}' is no namespace, so its attributes cannot be set", template_.names[id]);
  set_key(*this, space->attributes, name, value);
}

Restore<Scope*> Render::enter_scope(Scope* parent) {
  charge(2 * sizeof(Scope));
  return Restore(scope_, &scopes_.emplace_back(Scope{parent, {}}));
}

Value Render::call(const Value& callee, const Arguments& arguments) {
  require_defined(callee);
  const Callable* callable = callee.pointer<const Callable>();
  if (callable == nullptr) fail("'{}' object is not callable", type_name(callee));
  return callable->builtin != nullptr ? invoke(*this, *callable->builtin, callable->self, arguments)
                                      : call_macro(*callable, arguments);
}

Value Render::call_macro(const Callable& callable, Arguments arguments) {
  const Macro& macro = *callable.macro;
  const auto scope = enter_scope(callable.scope);
  std::vector<Value>& positional = arguments.positional;
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const auto& [id, default_value] = macro.parameters[i];
    const std::string& name = template_.names[id];
    const auto value = [&] {
      if (i < positional.size()) return positional[i];
      if (const std::optional<Value> named = take_named(arguments, name)) return *named;
      if (default_value != nullptr) return evaluate(default_value);
      return undefined("parameter '" + name + "' was not provided");
    };
    set_variable(id, value());
  }
  if (macro.mentions[kCaller]) {
    const std::optional<Value> caller = take_named(arguments, "caller");
    set_variable(kCaller, caller ? *caller : undefined("no caller is defined"));
  }
  if (macro.mentions[kKwargs]) {
    set_variable(kKwargs, make(std::move(arguments.named)));
  } else if (!arguments.named.empty()) {
    fail("macro '{}' takes no argument '{}'", macro.name, arguments.named[0].first.text()->bytes());
  }
  const std::size_t bound = std::min(positional.size(), macro.parameters.size());
  if (macro.mentions[kVarargs]) {
    positional.erase(positional.begin(), positional.begin() + static_cast<std::ptrdiff_t>(bound));
    set_variable(kVarargs, make(std::move(positional), ListKind::kTuple));
  } else if (positional.size() > bound) {
    fail("macro '{}' takes no more than {} arguments", macro.name, bound);
  }
  Text text;
  capture(macro.body, text);
  return make(std::move(text));
}

}  // namespace quire::jinja
