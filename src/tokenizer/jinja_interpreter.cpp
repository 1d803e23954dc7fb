// Runs templates.
#include <algorithm>
#include <deque>

#include "base/error.h"
#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_operators.h"

namespace quire::jinja {

// Variables of a block; what is not found here is looked for in `parent`, and after the last in the
// template's own.
struct Scope {
  Scope* parent;
  std::vector<std::pair<NameId, Value>> variables;
};

namespace {

enum class Flow { kNext, kBreak, kContinue };

// Sets what has that name, or adds it.
template <typename Pairs, typename Name>
void set_named(Pairs& pairs, const Name& name, const Value& value) {
  for (auto& [known, slot] : pairs) {
    if (known != name) continue;
    slot = value;
    return;
  }
  pairs.emplace_back(name, value);
}

class Interpreter {
 public:
  Interpreter(const Template& source, Runtime& runtime, std::vector<std::optional<Value>> variables)
      : template_(source), runtime_(runtime), variables_(std::move(variables)) {}

  Text run() {
    Text output;
    out_ = &output;
    try {
      execute(template_.body);
    } catch (const RaisedByTemplate&) {
      throw;
    } catch (const Error& error) {
      fail("{}, line {}: {}", template_.where, line_, error.what());
    }
    return output;
  }

 private:
  // ---- Variables

  const Value* find_variable(NameId id) {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      runtime_.charge(scope->variables.size() * 4);
      for (const auto& [name, value] : scope->variables) {
        if (name == id) return &value;
      }
    }
    return variables_[id] ? &*variables_[id] : nullptr;
  }

  void set_variable(NameId id, const Value& value) {
    if (scope_ == nullptr) {
      variables_[id] = value;
      return;
    }
    runtime_.charge(scope_->variables.size() * 4);
    set_named(scope_->variables, id, value);
  }

  void assign(const Target& target, const Value& value) {
    if (!target.parts.empty()) {
      const std::span<const Value> values = iterate(runtime_, value);
      if (values.size() != target.parts.size()) {
        fail("{} values cannot be unpacked into {} names", values.size(), target.parts.size());
      }
      for (std::size_t i = 0; i < values.size(); ++i) assign(target.parts[i], values[i]);
    } else if (target.attribute.empty()) {
      set_variable(target.name, value);
    } else {
      assign_attribute(target, value);
    }
  }

  void assign_attribute(const Target& target, const Value& value) {
    const Value* object = find_variable(target.name);
    Namespace* space = object == nullptr ? nullptr : object->pointer<Namespace>();
    if (space == nullptr)
      fail("'{}' is no namespace, so its attributes cannot be set", template_.names[target.name]);
    runtime_.charge(space->attributes.size() * 8);
    set_named(space->attributes, target.attribute, value);
  }

  // A fresh scope inside `parent` until the end of a block. Scopes live on, because macros may hold them.
  class Scoped {
   public:
    Scoped(Interpreter& interpreter, Scope* parent) : interpreter_(interpreter), outer_(interpreter.scope_) {
      interpreter.runtime_.charge(2 * sizeof(Scope));
      interpreter.scope_ = &interpreter.scopes_.emplace_back(Scope{parent, {}});
    }
    explicit Scoped(Interpreter& interpreter) : Scoped(interpreter, interpreter.scope_) {}
    ~Scoped() { interpreter_.scope_ = outer_; }
    Scoped(const Scoped&) = delete;
    Scoped& operator=(const Scoped&) = delete;

   private:
    Interpreter& interpreter_;
    Scope* outer_;
  };

  // ---- Statements

  Flow execute(const Body& body) {
    const Runtime::Depth depth(runtime_);
    for (const Statement& statement : body) {
      line_ = statement.line;
      runtime_.charge();
      const Flow flow = std::visit([&](const auto& node) { return run_statement(node); }, statement.node);
      if (flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  void write(const Text& text) {
    if (text.size() > runtime_.limits().max_output_bytes - out_->size()) {
      fail("the output is longer than {} bytes", runtime_.limits().max_output_bytes);
    }
    runtime_.charge(text.memory());
    out_->append(text);
  }

  // Runs a body with its output going to a text of its own.
  Flow capture(const Body& body, Text& captured) {
    Text* const outer = std::exchange(out_, &captured);
    const Flow flow = execute(body);
    out_ = outer;
    return flow;
  }

  Flow run_statement(const Data& node) {
    write(node.text);
    return Flow::kNext;
  }

  Flow run_statement(const Output& node) {
    const Value value = evaluate(*node.value);
    if (const Text* text = value.text()) {
      write(*text);
    } else {
      write(to_text(runtime_, value));
    }
    return Flow::kNext;
  }

  Flow run_statement(const If& node) {
    for (const auto& [test, body] : node.branches) {
      if (truth(evaluate(*test))) return execute(body);
    }
    return execute(node.otherwise);
  }

  std::span<const Value> items_of(const For& node) {
    const std::span<const Value> all = iterate(runtime_, evaluate(*node.iterable));
    if (node.condition == nullptr) return all;
    std::vector<Value> chosen;
    for (const Value& item : all) {
      const Scoped scoped(*this);
      assign(node.target, item);
      if (truth(evaluate(*node.condition))) chosen.push_back(item);
    }
    return runtime_.make(std::move(chosen)).list()->items;
  }

  Flow run_statement(const For& node) {
    const Value loop_value = runtime_.make(Loop{.items = items_of(node)});
    Loop& loop = *loop_value.pointer<Loop>();
    bool completed_one = false;  // Jinja runs the else part also when every round was cut short
    for (; loop.index < loop.items.size(); ++loop.index) {
      const Scoped scoped(*this);
      set_variable(loop_name_, loop_value);
      assign(node.target, loop.items[loop.index]);
      const Flow flow = execute(node.body);
      if (flow == Flow::kBreak) break;
      completed_one |= flow == Flow::kNext;
    }
    if (completed_one || node.otherwise.empty()) return Flow::kNext;
    const Scoped scoped(*this);
    return execute(node.otherwise);
  }

  Flow run_statement(const Set& node) {
    assign(node.target, evaluate(*node.value));
    return Flow::kNext;
  }

  // The text of a body that has a scope of its own, with filters applied.
  Flow filtered_body(const Body& body, const Expr& filtered, Value& result) {
    Text text;
    Flow flow;
    {
      const Scoped scoped(*this);
      flow = capture(body, text);
    }
    if (flow != Flow::kNext) return flow;
    captured_ = runtime_.make(std::move(text));
    result = evaluate(filtered);
    return Flow::kNext;
  }

  Flow run_statement(const SetBlock& node) {
    Value value;
    const Flow flow = filtered_body(node.body, *node.filtered, value);
    if (flow == Flow::kNext) assign(node.target, value);
    return flow;
  }

  Flow run_statement(const FilterBlock& node) {
    Value value;
    const Flow flow = filtered_body(node.body, *node.filtered, value);
    if (flow == Flow::kNext) write(to_text(runtime_, value));
    return flow;
  }

  Flow run_statement(const With& node) {
    std::vector<Value> values;  // all of them before the first is set
    for (const auto& [target, value] : node.variables) values.push_back(evaluate(*value));
    const Scoped scoped(*this);
    for (std::size_t i = 0; i < values.size(); ++i) assign(node.variables[i].first, values[i]);
    return execute(node.body);
  }

  Flow run_statement(const MacroDefinition& node) {
    set_variable(node.id, make_macro(node));
    return Flow::kNext;
  }

  Value make_macro(const MacroDefinition& node) {
    return runtime_.make(Callable{.name = node.name, .macro = &node, .scope = scope_});
  }

  Flow run_statement(const CallBlock& node) {
    const Call& call = std::get<Call>(node.call->node);
    const Value callee = evaluate(*call.callee);
    Arguments arguments = evaluate(call.arguments);
    arguments.named.emplace_back("caller", make_macro(node.caller));
    write(to_text(runtime_, invoke(callee, arguments)));
    return Flow::kNext;
  }

  Flow run_statement(const ScopedBlock& node) {
    const Scoped scoped(*this);
    return execute(node.body);
  }

  Flow run_statement(const Break&) { return Flow::kBreak; }
  Flow run_statement(const Continue&) { return Flow::kContinue; }

  // ---- Calls

  Value invoke(const Value& callee, const Arguments& arguments) {
    if (callee.is_undefined()) fail_undefined(callee);
    const Callable* callable = callee.pointer<const Callable>();
    if (callable == nullptr) fail("'{}' object is not callable", type_name(callee));
    if (callable->native != nullptr) {
      return callable->native({runtime_, callable->name, callable->self, arguments});
    }
    return invoke_macro(*callable, arguments);
  }

  Value invoke_macro(const Callable& callable, Arguments arguments) {
    const MacroDefinition& macro = *callable.macro;
    const Scoped scoped(*this, callable.scope);
    for (std::size_t i = 0; i < macro.parameters.size(); ++i) bind_parameter(macro, i, arguments);
    if (macro.uses_caller) {
      const std::optional<Value> caller = take_named(arguments, "caller");
      set_variable(caller_name_, caller ? *caller : runtime_.undefined("no caller is defined"));
    }
    if (macro.uses_kwargs) {
      std::vector<std::pair<Value, Value>> named;
      for (const auto& [name, value] : arguments.named) named.emplace_back(runtime_.make(name, true), value);
      set_variable(kwargs_name_, runtime_.make(std::move(named)));
    } else if (!arguments.named.empty()) {
      fail("macro '{}' takes no argument '{}'", macro.name, arguments.named[0].first);
    }
    std::vector<Value>& positional = arguments.positional;
    const std::size_t bound = std::min(positional.size(), macro.parameters.size());
    if (macro.uses_varargs) {
      positional.erase(positional.begin(), positional.begin() + static_cast<std::ptrdiff_t>(bound));
      set_variable(varargs_name_, runtime_.make(std::move(positional), ListKind::kTuple));
    } else if (positional.size() > bound) {
      fail("macro '{}' takes no more than {} arguments", macro.name, bound);
    }
    Text text;
    capture(macro.body, text);
    return runtime_.make(std::move(text));
  }

  void bind_parameter(const MacroDefinition& macro, std::size_t index, Arguments& arguments) {
    const auto& [name, default_value] = macro.parameters[index];
    if (index < arguments.positional.size()) {
      set_variable(name, arguments.positional[index]);
    } else if (const std::optional<Value> named = take_named(arguments, template_.names[name])) {
      set_variable(name, *named);
    } else if (default_value != nullptr) {
      set_variable(name, evaluate(*default_value));
    } else {
      set_variable(name, runtime_.undefined("parameter '" + template_.names[name] + "' was not provided"));
    }
  }

  static std::optional<Value> take_named(Arguments& arguments, std::string_view name) {
    for (auto argument = arguments.named.begin(); argument != arguments.named.end(); ++argument) {
      if (argument->first != name) continue;
      const Value value = argument->second;
      arguments.named.erase(argument);
      return value;
    }
    return std::nullopt;
  }

  // Past the last name where the template does not mention it.
  NameId find_name(std::string_view name) const {
    const auto& names = template_.names;
    return static_cast<NameId>(std::find(names.begin(), names.end(), name) - names.begin());
  }

  // ---- Expressions

  Value evaluate(const Expr& expr) {
    const Runtime::Depth depth(runtime_);
    line_ = expr.line;
    runtime_.charge();
    return std::visit([&](const auto& node) { return value_of(node); }, expr.node);
  }

  Value evaluate_or_none(const ExprPtr& expr) { return expr == nullptr ? Value{None{}} : evaluate(*expr); }

  Arguments evaluate(const ArgumentExprs& exprs) {
    Arguments arguments;
    for (const ExprPtr& expr : exprs.positional) arguments.positional.push_back(evaluate(*expr));
    for (const auto& [name, expr] : exprs.named) arguments.named.emplace_back(name, evaluate(*expr));
    return arguments;
  }

  Value value_of(const Literal& node) { return node.value; }

  Value value_of(const Name& node) {
    const Value* value = find_variable(node.id);
    return value != nullptr ? *value : runtime_.undefined("'" + template_.names[node.id] + "' is undefined");
  }

  Value value_of(const CapturedBlock&) { return captured_; }

  Value value_of(const Attribute& node) { return get_attribute(runtime_, evaluate(*node.object), node.name); }

  Value value_of(const Item& node) {
    const Value object = evaluate(*node.object);
    return get_item(runtime_, object, evaluate(*node.index));
  }

  Value value_of(const Slice& node) {
    const Value object = evaluate(*node.object);
    const Value start = evaluate_or_none(node.start), stop = evaluate_or_none(node.stop);
    return apply_slice(runtime_, object, start, stop, evaluate_or_none(node.step));
  }

  Value value_of(const ListLiteral& node) {
    std::vector<Value> items;
    for (const ExprPtr& item : node.items) items.push_back(evaluate(*item));
    return runtime_.make(std::move(items), node.kind);
  }

  Value value_of(const DictLiteral& node) {
    std::vector<std::pair<Value, Value>> items;
    for (const auto& [key_expr, value_expr] : node.items) {
      const Value key = evaluate(*key_expr);
      set_key(runtime_, items, key, evaluate(*value_expr));
    }
    return runtime_.make(std::move(items));
  }

  Value value_of(const Unary& node) { return apply_unary(runtime_, node.op, evaluate(*node.operand)); }

  Value value_of(const Binary& node) {
    const Value left = evaluate(*node.left);
    return apply_binary(runtime_, node.op, left, evaluate(*node.right));
  }

  Value value_of(const Concat& node) {
    Text text;
    for (const ExprPtr& part : node.parts) {
      const Value value = evaluate(*part);
      text.append(to_text(runtime_, value));
    }
    return runtime_.make(std::move(text));
  }

  Value value_of(const Logical& node) {
    const Value left = evaluate(*node.left);
    return truth(left) == node.is_and ? evaluate(*node.right) : left;
  }

  Value value_of(const Compare& node) {
    Value left = evaluate(*node.first);
    for (const auto& [op, expr] : node.rest) {
      const Value right = evaluate(*expr);
      if (!apply_compare(runtime_, op, left, right)) return {false};
      left = right;
    }
    return {true};
  }

  Value value_of(const Conditional& node) {
    if (truth(evaluate(*node.test))) return evaluate(*node.then);
    if (node.otherwise != nullptr) return evaluate(*node.otherwise);
    return runtime_.undefined("the condition is false and there is no else part");
  }

  Value value_of(const Call& node) {
    const Value callee = evaluate(*node.callee);
    return invoke(callee, evaluate(node.arguments));
  }

  Value value_of(const Apply& node) {
    if (node.native == nullptr) fail("no {} is named '{}'", node.is_test ? "test" : "filter", node.name);
    const Value input = evaluate(*node.input);
    const Arguments arguments = evaluate(node.arguments);
    const Value result = node.native({runtime_, node.name, input, arguments});
    return node.is_test ? Value{truth(result)} : result;
  }

  const Template& template_;
  Runtime& runtime_;
  std::vector<std::optional<Value>> variables_;
  const NameId loop_name_ = find_name("loop");
  const NameId caller_name_ = find_name("caller");
  const NameId kwargs_name_ = find_name("kwargs");
  const NameId varargs_name_ = find_name("varargs");
  std::deque<Scope> scopes_;
  Scope* scope_ = nullptr;  // null outside of every block: variables_
  Text* out_ = nullptr;
  Value captured_;
  int line_ = 1;  // of what runs, for errors
};

}  // namespace

Text run_template(const Template& source, Runtime& runtime, std::vector<std::optional<Value>> variables) {
  return Interpreter(source, runtime, std::move(variables)).run();
}

}  // namespace quire::jinja
