#include "dialects/pattern.h"

#include "base/error.h"

namespace quire::dialects {
namespace {

using Kind = Element::Kind;

bool takes_space_beside(Kind kind) { return kind >= Kind::kName && kind != Kind::kValue; }

Kind kind_of(char letter) {
  constexpr std::string_view kLetters = "NIOJPGXKVT";
  const std::size_t at = kLetters.find(letter);
  QUIRE_CHECK(at != kLetters.npos);
  return static_cast<Kind>(static_cast<std::size_t>(Kind::kName) + at);
}

bool has_longer_literal(const Element& element, std::size_t bytes) {
  return element.kind == Kind::kLiteral && element.text.size() > bytes;
}

CompiledForm compile_form(const ToolDialect& dialect, const ToolForm& form) {
  CompiledForm compiled;
  compiled.parts[CompiledForm::kBegin] = compile_pattern(form.begin);
  Pattern& call = compiled.parts[CompiledForm::kCall] = compile_pattern(form.call);
  for (const auto part : {CompiledForm::kSeparator, CompiledForm::kEnd}) {
    const std::string_view text = part == CompiledForm::kEnd ? form.end : form.separator;
    Pattern& pattern = compiled.parts[part] = compile_pattern(text);
    if (!text.empty() && !is_space(text.front())) pattern.insert(pattern.begin(), {.kind = Kind::kSpace});
  }
  compiled.parts[CompiledForm::kParameter] = compile_pattern(dialect.parameter);

  const Pattern& first = form.begin.empty() ? call : compiled.parts[CompiledForm::kBegin];
  if (has_longer_literal(first.front(), 1)) compiled.trigger = first.front().text;
  bool behind_arguments = false;
  for (std::size_t i = 0; i < call.size(); ++i) {
    const Kind kind = call[i].kind;
    if (kind == Kind::kParameters) compiled.parameters = i;
    if (behind_arguments && has_longer_literal(call[i], 2)) compiled.closers.push_back(call[i].text);
    if (behind_arguments && kind == Kind::kLiteral && compiled.after_parameters == 0)
      compiled.after_parameters = i;
    behind_arguments = behind_arguments || (kind >= Kind::kObject && kind <= Kind::kParameters);
  }
  for (const Element& element : compiled.parts[CompiledForm::kEnd])
    if (has_longer_literal(element, 2)) compiled.closers.push_back(element.text);
  return compiled;
}

}  // namespace

Pattern compile_pattern(std::string_view text) {
  Pattern pattern;
  std::size_t open = 0;  // where the optional elements that are read begin
  const auto add = [&](Element element) { pattern.push_back(std::move(element)); };
  const auto is_behind = [&](Kind kind) { return !pattern.empty() && pattern.back().kind == kind; };
  while (!text.empty()) {
    const bool marked = text.front() == '$', space = is_space(text.front());
    const std::size_t size = space ? text.find_first_not_of(kWhiteSpace) : marked ? 2 : 1;
    const std::string_view part = text.substr(0, size);
    const char letter = part.back();  // behind the $, where there is one
    text.remove_prefix(part.size());
    if (space) {
      add({.kind = is_behind(Kind::kValue) ? Kind::kLine : Kind::kSpace, .text = std::string(part)});
    } else if (!marked || letter == '_') {
      if (!is_behind(Kind::kLiteral)) add({});
      pattern.back().text += marked ? ' ' : letter;
    } else if (letter == '[' || letter == '(') {
      open = pattern.size();
      add({.kind = Kind::kOptional, .written = letter == '['});
    } else if (letter == ']' || letter == ')') {
      pattern[open].size = pattern.size() - open - 1;
      if (!text.empty()) add({.kind = Kind::kSpace});
    } else {
      const Kind kind = kind_of(letter);
      const bool spaced = takes_space_beside(kind);
      if (spaced && is_behind(Kind::kLiteral)) add({.kind = Kind::kSpace});
      if (kind == Kind::kValue && is_behind(Kind::kSpace)) pattern.back().kind = Kind::kLine;
      add({.kind = kind});
      if (spaced && !text.empty() && !is_space(text.front())) add({.kind = Kind::kSpace});
    }
  }
  return pattern;
}

const CompiledDialect& compiled(const ToolDialect& dialect) {
  static const std::vector<CompiledDialect> all = [] {
    std::vector<CompiledDialect> made;
    for (const ToolDialect& row : tool_dialects()) {
      made.push_back({.dialect = &row, .forms = {}});
      for (const ToolForm& form : row.forms) made.back().forms.push_back(compile_form(row, form));
    }
    return made;
  }();
  return all.at(&dialect - tool_dialects().data());
}

}  // namespace quire::dialects
