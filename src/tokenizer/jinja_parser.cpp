// The part of the parser that reads statements.
#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja_expression_parser.h"
#include "tokenizer/jinja_unicode.h"

namespace quire::jinja {
namespace {

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
    const Nesting nesting(*this);
    Body body;
    while (true) {
      const int line = current().line;
      switch (current().kind) {
        case TokenKind::kEnd:
          if (ends.size() > 0) refuse("the template ends inside a block that needs '{}'", *(ends.end() - 1));
          return body;
        case TokenKind::kData:
          body.push_back({line, Data{Text(take().text, true)}});
          break;
        case TokenKind::kVariableBegin:
          take();
          body.push_back({line, Output{parse_tuple(true)}});
          expect(TokenKind::kVariableEnd, "'}}'");
          break;
        default:
          take();  // kBlockBegin
          if (current().kind == TokenKind::kName &&
              std::count(ends.begin(), ends.end(), current().text) > 0) {
            return body;
          }
          parse_statement(line, body);
          expect(TokenKind::kBlockEnd, "'%}'");
      }
    }
  }

  // From the current block's end to the tag that closes it.
  Body parse_block(Ends ends) {
    expect(TokenKind::kBlockEnd, "'%}'");
    return parse_body(ends);
  }

  Body parse_block(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  void parse_statement(int line, Body& body) {
    const std::string name = take_name("a statement");
    if (name == "if") {
      body.push_back({line, parse_if()});
    } else if (name == "for") {
      body.push_back({line, parse_for()});
    } else if (name == "set") {
      parse_set(line, body);
    } else if (name == "macro") {
      body.push_back({line, parse_macro()});
    } else if (name == "call") {
      body.push_back({line, parse_call_block()});
    } else if (name == "filter") {
      FilterBlock block;
      block.filtered = parse_filters(make(line, CapturedBlock{}, {}), true);
      block.body = parse_block("endfilter");
      body.push_back({line, std::move(block)});
    } else if (name == "with") {
      body.push_back({line, parse_with()});
    } else if (name == "generation") {
      const Restore loops(loop_depth_, 0);
      body.push_back({line, ScopedBlock{parse_block("endgeneration")}});
    } else if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) refuse("'{}' outside of a loop", name);
      if (name == "break") {
        body.push_back({line, Break{}});
      } else {
        body.push_back({line, Continue{}});
      }
    } else {
      refuse("unknown or misplaced statement '{}'", name);
    }
  }

  If parse_if() {
    If node;
    const Restore conditional(conditional_, conditional_ + 1);
    while (true) {
      ExprPtr test = parse_tuple(false);
      node.branches.emplace_back(std::move(test), parse_block({"elif", "else", "endif"}));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") node.otherwise = parse_block("endif");
      return node;
    }
  }

  For parse_for() {
    For node;
    node.target = parse_target(false);
    if (assigns_loop(node.target)) refuse("'loop' cannot be the variable of a for loop");
    if (!accept_name("in")) refuse("expected 'in' after the names of a for loop");
    const Restore conditional(conditional_, conditional_ + 1);
    node.iterable = parse_tuple(false);
    if (accept_name("if")) node.condition = parse_expression();
    if (current().is_name("recursive")) refuse("recursive for loops are not supported");
    {
      const Restore loops(loop_depth_, loop_depth_ + 1);
      node.body = parse_block({"else", "endfor"});
    }
    if (take().text == "else") node.otherwise = parse_block("endfor");
    return node;
  }

  bool assigns_loop(const Target& target) const {
    if (target.parts.empty()) return result_.names[target.name] == "loop";
    return std::any_of(target.parts.begin(), target.parts.end(),
                       [&](const Target& part) { return assigns_loop(part); });
  }

  void parse_set(int line, Body& body) {
    Target target = parse_target(true);
    if (accept_operator("=")) {
      body.push_back({line, Set{std::move(target), parse_tuple(true)}});
      return;
    }
    SetBlock block;
    block.target = std::move(target);
    block.filtered = parse_filters(make(line, CapturedBlock{}, {}), false);
    block.body = parse_block("endset");
    body.push_back({line, std::move(block)});
  }

  With parse_with() {
    With node;
    while (current().kind != TokenKind::kBlockEnd) {
      if (!node.variables.empty()) expect_operator(",");
      Target target = parse_target(false);
      expect_operator("=");
      node.variables.emplace_back(std::move(target), parse_expression());
    }
    node.body = parse_block("endwith");
    return node;
  }

  Target parse_target(bool allow_namespace) {
    Target target = parse_target_part(allow_namespace);
    if (!current().is_operator(",")) return target;
    Target tuple;
    tuple.parts.push_back(std::move(target));
    while (accept_operator(",")) {
      const bool trailing = current().kind == TokenKind::kBlockEnd || current().is_name("in") ||
                            current().is_operator("=") || current().is_operator(")");
      if (trailing) break;
      tuple.parts.push_back(parse_target_part(allow_namespace));
    }
    return tuple;
  }

  Target parse_target_part(bool allow_namespace) {
    const Nesting nesting(*this);
    if (accept_operator("(")) {
      Target target = parse_target(allow_namespace);
      expect_operator(")");
      return target;
    }
    Target target;
    target.name = take_assignable();
    if (allow_namespace && accept_operator(".")) target.attribute = take_name("an attribute");
    return target;
  }

  NameId take_assignable() {
    const std::string name = take_name("a name to assign to");
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::count(std::begin(kConstants), std::end(kConstants), name) > 0)
      refuse("cannot assign to '{}'", name);
    return intern(name);
  }

  void parse_signature(MacroDefinition& macro) {
    expect_operator("(");
    while (!accept_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      const NameId name = take_assignable();
      ExprPtr value;
      if (accept_operator("=")) {
        value = parse_expression();
      } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
        refuse("a parameter without a default follows one with a default");
      }
      macro.parameters.emplace_back(name, std::move(value));
    }
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const Restore loops(loop_depth_, 0);
    const Mentions outer = std::exchange(mentions_, {});
    macro.body = parse_block(end);
    macro.uses_caller = mentions_.caller;
    macro.uses_varargs = mentions_.varargs;
    macro.uses_kwargs = mentions_.kwargs;
    mentions_ = {mentions_.caller || outer.caller, mentions_.varargs || outer.varargs,
                 mentions_.kwargs || outer.kwargs};
  }

  MacroDefinition parse_macro() {
    MacroDefinition macro;
    macro.id = take_assignable();
    macro.name = result_.names[macro.id];
    parse_signature(macro);
    parse_macro_body(macro, "endmacro");
    return macro;
  }

  CallBlock parse_call_block() {
    CallBlock block;
    block.caller.name = "caller";
    if (current().is_operator("(")) parse_signature(block.caller);
    block.call = parse_expression();
    if (!std::holds_alternative<Call>(block.call->node)) refuse("a call block needs a call");
    parse_macro_body(block.caller, "endcall");
    return block;
  }

  std::size_t loop_depth_ = 0;  // loops around the current statement, within its macro
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
