// The part of the parser that reads statements.
#include <algorithm>

#include "tokenizer/jinja_expression_parser.h"

namespace quire::jinja {
namespace {

using Run = std::function<Flow(Render&)>;

struct For {
  Assign assign;
  ExprPtr iterable, condition = nullptr;  // condition may be null
  Body body, otherwise;

  std::span<const Value> items(Render& run) const {
    const std::span<const Value> all = iterate(run, run.evaluate(iterable));
    if (condition == nullptr) return all;
    std::vector<Value> chosen;
    for (const Value& item : all) {
      const auto scope = run.enter_scope();
      assign(run, item);
      if (truth(run.evaluate(condition))) chosen.push_back(item);
    }
    return run.make(std::move(chosen)).list()->items;
  }

  Flow operator()(Render& run) const {
    const Value loop_value = run.make(Loop{.items = items(run)});
    Loop& loop = *loop_value.pointer<Loop>();
    bool completed_one = false;  // Jinja runs the else part also when every round was cut short
    for (; loop.index < loop.items.size(); ++loop.index) {
      const auto scope = run.enter_scope();
      run.set_variable(kLoop, loop_value);
      assign(run, loop.items[loop.index]);
      const Flow flow = run.execute(body);
      if (flow == Flow::kBreak) break;
      completed_one |= flow == Flow::kNext;
    }
    if (completed_one || otherwise.empty()) return Flow::kNext;
    const auto scope = run.enter_scope();
    return run.execute(otherwise);
  }
};

// Statements; expressions are the base's.
class Parser : private ExpressionParser {
 public:
  Parser(Template& result, std::vector<Token> tokens, const Limits& limits)
      : ExpressionParser(result, std::move(tokens), limits) {}

  void run() { result_.body = parse_body({}); }

 private:
  using Ends = std::initializer_list<std::string_view>;

  // Statements up to a tag named in `ends` (whose name is the current token afterwards), or to the end of the
  // source.
  Body parse_body(Ends ends) {
    const auto nesting = nest();
    Body body;
    while (current().kind != TokenKind::kEnd) {
      const auto& [kind, line, text] = take();
      if (kind == TokenKind::kData) {
        body.push_back({line, make_output(make_literal(line, make_text(text)))});
      } else if (kind == TokenKind::kVariableBegin) {
        body.push_back({line, make_output(parse_tuple(true))});
        take(TokenKind::kVariableEnd, "'}}'");
      } else {  // kBlockBegin
        const bool is_name = current().kind == TokenKind::kName;
        if (is_name && std::ranges::count(ends, current().text) > 0) return body;
        body.push_back({line, parse_statement(line)});
        take(TokenKind::kBlockEnd, "'%}'");
      }
    }
    if (ends.size() > 0) refuse("the template ends inside a block that needs '{}'", *(ends.end() - 1));
    return body;
  }

  // From the current block's end to the tag that closes it.
  Body parse_block(Ends ends) {
    take(TokenKind::kBlockEnd, "'%}'");
    return parse_body(ends);
  }

  Body parse_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  static Run make_output(ExprPtr value) {
    return [value](Render& run) {
      run.write(run.evaluate(value));
      return Flow::kNext;
    };
  }

  Run parse_statement(int line) {
    const std::string name = take_name("a statement");
    if (name == "if") return parse_if();
    if (name == "for") return parse_for();
    if (name == "set") return parse_set(line);
    if (name == "macro") return parse_macro();
    if (name == "call") return parse_call_block(line);
    if (name == "filter") return parse_filter_block(line);
    if (name == "with") return parse_with();
    if (name == "generation") return parse_generation();
    if (name != "break" && name != "continue") refuse("unknown or misplaced statement '{}'", name);
    if (loop_depth_ == 0) refuse("'{}' outside of a loop", name);
    return [flow = name == "break" ? Flow::kBreak : Flow::kContinue](Render&) { return flow; };
  }

  Run parse_if() {
    std::vector<std::pair<ExprPtr, Body>> branches;  // the else part has no test
    const Restore conditional(conditional_, conditional_ + 1);
    std::string end;
    while (end != "endif") {
      const bool last = end == "else";
      const ExprPtr test = last ? nullptr : parse_tuple(false);
      branches.emplace_back(test, last ? parse_block({"endif"}) : parse_block({"elif", "else", "endif"}));
      end = take().text;
    }
    return [branches = std::move(branches)](Render& run) {
      for (const auto& [test, body] : branches)
        if (test == nullptr || truth(run.evaluate(test))) return run.execute(body);
      return Flow::kNext;
    };
  }

  Run parse_for() {
    For node;
    assigns_loop_ = false;
    node.assign = parse_target(false);
    if (assigns_loop_) refuse("'loop' cannot be the variable of a for loop");
    if (!accept("in")) refuse("expected 'in' after the names of a for loop");
    const Restore conditional(conditional_, conditional_ + 1);
    node.iterable = parse_tuple(false);
    if (accept("if")) node.condition = parse_expression();
    if (current().is("recursive")) refuse("recursive for loops are not supported");
    {
      const Restore loops(loop_depth_, loop_depth_ + 1);
      node.body = parse_block({"else", "endfor"});
    }
    if (take().text == "else") node.otherwise = parse_block("endfor");
    return node;
  }

  Run parse_set(int line) {
    Assign assign = parse_target(true);
    if (accept("=")) {
      return [assign = std::move(assign), value = parse_tuple(true)](Render& run) {
        assign(run, run.evaluate(value));
        return Flow::kNext;
      };
    }
    return make_filtered(line, false, "endset", std::move(assign));
  }

  Run parse_filter_block(int line) {
    return make_filtered(line, true, "endfilter", [](Render& run, const Value& value) { run.write(value); });
  }

  // A block whose text goes through filters, the first of which may come without its bar, to `use`.
  Run make_filtered(int line, bool first_bare, std::string_view end, Assign use) {
    const ExprPtr captured = make(line, [](Render& run) { return run.captured; });
    ExprPtr filters = first_bare ? parse_filter(captured) : captured;
    while (accept("|")) filters = parse_filter(filters);
    return [filters, body = parse_block(end), use = std::move(use)](Render& run) {
      Text text;
      const Flow flow = [&] {
        const auto scope = run.enter_scope();
        return run.capture(body, text);
      }();
      if (flow != Flow::kNext) return flow;
      run.captured = run.make(std::move(text));
      use(run, run.evaluate(filters));
      return Flow::kNext;
    };
  }

  Run parse_with() {
    std::vector<std::pair<Assign, ExprPtr>> variables;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!variables.empty()) expect(",");
      Assign assign = parse_target(false);
      expect("=");
      variables.emplace_back(std::move(assign), parse_expression());
    }
    return [variables = std::move(variables), body = parse_block("endwith")](Render& run) {
      std::vector<Value> values;  // all of them before the first is set
      for (const auto& [assign, value] : variables) values.push_back(run.evaluate(value));
      const auto scope = run.enter_scope();
      for (std::size_t i = 0; i < values.size(); ++i) variables[i].first(run, values[i]);
      return run.execute(body);
    };
  }

  // {% generation %} is only a scope of its own.
  Run parse_generation() {
    const Restore loops(loop_depth_, 0);
    return [body = parse_block("endgeneration")](Render& run) {
      const auto scope = run.enter_scope();
      return run.execute(body);
    };
  }

  Assign parse_target(bool allow_namespace) {
    Assign first = parse_target_part(allow_namespace);
    if (!current().is(",")) return first;
    std::vector<Assign> parts = {std::move(first)};
    while (accept(",")) {
      const bool trailing = current().kind == TokenKind::kBlockEnd || current().is("in") ||
                            current().is("=") || current().is(")");
      if (trailing) break;
      parts.push_back(parse_target_part(allow_namespace));
    }
    return [parts = std::move(parts)](Render& run, const Value& value) {
      const std::span<const Value> values = iterate(run, value);
      if (values.size() != parts.size())
        fail("{} values cannot be unpacked into {} names", values.size(), parts.size());
      for (std::size_t i = 0; i < values.size(); ++i) parts[i](run, values[i]);
    };
  }

  Assign parse_target_part(bool allow_namespace) {
    const auto nesting = nest();
    if (accept("(")) {
      Assign target = parse_target(allow_namespace);
      expect(")");
      return target;
    }
    const NameId id = take_assignable();
    assigns_loop_ |= id == kLoop;
    if (allow_namespace && accept(".")) {
      const Value attribute = make_text(take_name("an attribute"));
      return [id, attribute](Render& run, const Value& value) { run.set_attribute(id, attribute, value); };
    }
    return [id](Render& run, const Value& value) { run.set_variable(id, value); };
  }

  NameId take_assignable() {
    const std::string name = take_name("a name to assign to");
    if (find_constant(name)) refuse("cannot assign to '{}'", name);
    return intern(name);
  }

  void parse_signature(Macro& macro) {
    expect("(");
    while (!accept(")")) {
      if (!macro.parameters.empty()) expect(",");
      const NameId name = take_assignable();
      ExprPtr value = nullptr;
      if (accept("=")) {
        value = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
        refuse("a parameter without a default follows one with a default");
      }
      macro.parameters.emplace_back(name, value);
    }
  }

  void parse_macro_body(Macro& macro, std::string_view end) {
    const Restore loops(loop_depth_, 0);
    const auto outer = std::exchange(mentions_, {});
    macro.body = parse_block(end);
    macro.mentions = mentions_;
    for (std::size_t i = 0; i < outer.size(); ++i) mentions_[i] |= outer[i];
  }

  Run parse_macro() {
    Macro& macro = result_.macros.emplace_back();
    const NameId id = take_assignable();
    macro.name = result_.names[id];
    parse_signature(macro);
    parse_macro_body(macro, "endmacro");
    return [id, &macro](Render& run) {
      run.set_variable(id, run.make_macro(macro));
      return Flow::kNext;
    };
  }

  // {% call f(x) %}body{% endcall %} prints f(x, caller=a macro of that body).
  Run parse_call_block(int line) {
    Macro& macro = result_.macros.emplace_back();
    macro.name = "caller";
    if (current().is("(")) parse_signature(macro);
    const ExprPtr call = parse_expression();
    if (call->arguments == nullptr) refuse("a call block needs a call");
    parse_macro_body(macro, "endcall");
    const ExprPtr caller = make(line, [&macro](Render& run) { return run.make_macro(macro); });
    call->arguments->named.emplace_back(make_text("caller"), caller);
    return make_output(call);
  }

  std::size_t loop_depth_ = 0;  // loops around the current statement, within its macro
  bool assigns_loop_ = false;   // whether a target since it was reset assigns to `loop`
};

}  // namespace

Template parse_template(std::string_view source, std::string_view where, const Limits& limits) {
  if (source.size() > limits.max_source_bytes) {
    fail("{}: the chat template has {} bytes; at most {} are allowed", where, source.size(),
         limits.max_source_bytes);
  }
  if (!is_valid_utf8(source)) fail("{}: the chat template is no valid UTF-8", where);
  Template result;
  result.where = where;
  Parser(result, lex(source, where), limits).run();
  return result;
}

}  // namespace quire::jinja
