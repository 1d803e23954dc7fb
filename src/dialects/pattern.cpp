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

class PatternCompiler {
 public:
  explicit PatternCompiler(std::string_view text) : text_(text) {}

  Pattern run() {
    while (at_ < text_.size()) {
      if (text_[at_] == '$') {
        marked(text_[at_ + 1]);
        at_ += 2;
      } else if (is_space(text_[at_])) {
        std::size_t end = at_;
        while (end < text_.size() && is_space(text_[end])) ++end;
        space(text_.substr(at_, end - at_));
        at_ = end;
      } else {
        literal(text_[at_++]);
      }
    }
    return std::move(pattern_);
  }

 private:
  void marked(char letter) {
    if (letter == '_') return literal(' ');
    if (letter == '[' || letter == '(') {
      open_ = pattern_.size();
      pattern_.push_back({.kind = Kind::kOptional, .written = letter == '['});
    } else if (letter == ']' || letter == ')') {
      pattern_[open_].size = pattern_.size() - open_ - 1;
      if (at_ + 2 < text_.size()) pattern_.push_back({.kind = Kind::kSpace});
    } else {
      const Kind kind = kind_of(letter);
      const bool spaced = takes_space_beside(kind);
      if (spaced && !pattern_.empty() && pattern_.back().kind == Kind::kLiteral)
        pattern_.push_back({.kind = Kind::kSpace});
      if (kind == Kind::kValue && pattern_.back().kind == Kind::kSpace) pattern_.back().kind = Kind::kLine;
      pattern_.push_back({.kind = kind});
      const bool space_follows = at_ + 2 < text_.size() && !is_space(text_[at_ + 2]);
      if (spaced && space_follows) pattern_.push_back({.kind = Kind::kSpace});
    }
  }

  void space(std::string_view text) {
    const bool behind_value = !pattern_.empty() && pattern_.back().kind == Kind::kValue;
    pattern_.push_back({.kind = behind_value ? Kind::kLine : Kind::kSpace, .text = std::string(text)});
  }

  void literal(char c) {
    if (pattern_.empty() || pattern_.back().kind != Kind::kLiteral) pattern_.push_back({});
    pattern_.back().text += c;
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t open_ = 0;  // where the optional elements that are read begin
  Pattern pattern_;
};

bool has_longer_literal(const Element& element) {
  return element.kind == Kind::kLiteral && element.text.size() > 2;
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
  compiled.at_start = first.front().kind != Kind::kLiteral || first.front().text.size() == 1;
  if (!compiled.at_start) compiled.trigger = first.front().text;
  bool behind_arguments = false;
  for (std::size_t i = 0; i < call.size(); ++i) {
    const Kind kind = call[i].kind;
    if (kind == Kind::kParameters) compiled.parameters = i;
    if (behind_arguments && has_longer_literal(call[i])) compiled.closers.push_back(call[i].text);
    if (behind_arguments && kind == Kind::kLiteral && compiled.after_parameters == 0)
      compiled.after_parameters = i;
    behind_arguments = behind_arguments || (kind >= Kind::kObject && kind <= Kind::kParameters);
  }
  for (const Element& element : compiled.parts[CompiledForm::kEnd])
    if (has_longer_literal(element)) compiled.closers.push_back(element.text);
  return compiled;
}

}  // namespace

Pattern compile_pattern(std::string_view text) { return PatternCompiler(text).run(); }

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
