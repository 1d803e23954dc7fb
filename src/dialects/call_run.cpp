#include "dialects/call_run.h"

#include <algorithm>
#include <utility>

namespace quire::dialects {
namespace {

using Kind = Element::Kind;
using Form = CompiledForm;

constexpr std::size_t kLongestName = 256;  // bytes

bool is_key_byte(char c) { return std::string_view("<>\"\n").find(c) == std::string_view::npos; }

}  // namespace

CallRun::CallRun(const CompiledDialect& dialect, std::string_view trigger, const OrderedJson* tools,
                 Sink sink)
    : dialect_(dialect),
      tools_(tools),
      sink_(std::move(sink)),
      tagged_(!trigger.empty()),
      at_{.form = nullptr} {
  for (const Form& form : dialect.forms) {
    if (form.trigger != trigger) continue;
    Position at{.form = &form, .part = form.parts[Form::kBegin].empty() ? Form::kCall : Form::kBegin};
    at.index = tagged_ ? 1 : 0;
    positions_.push_back(std::move(at));
  }
}

ReadStatus CallRun::push(char c) {
  consumed_ = false;
  if (value_) return push_value(c);
  next_.clear();
  for (const Position& at : positions_) {
    step(at, c);
    if (value_) return push_value(c);
  }
  if (next_.empty()) return ReadStatus::kError;
  positions_.swap(next_);
  return done_ ? ReadStatus::kEnd : ReadStatus::kMore;
}

// From the end of a part to those that may follow it.
void CallRun::step_on(Position at, char c) {
  at.index = 0;
  switch (at.part) {
    case Form::kCall:
      at.begun = at.has_argument = false;
      at.part = Form::kEnd;
      step(at, c);
      at.part = Form::kSeparator;
      return step(std::move(at), c);
    case Form::kParameter:
      at.index = at.form->parameters;
      at.key.clear();
      at.typed.clear();
      break;
    default:
      at.name.clear();
      at.id.clear();
  }
  at.part = Form::kCall;
  step(std::move(at), c);
}

void CallRun::step(Position at, char c) {
  if (at.at_end()) return step_on(std::move(at), c);
  const Element& element = at.pattern()[at.index];
  switch (element.kind) {
    case Kind::kLiteral:
      return step_literal(std::move(at), c);
    case Kind::kSpace:
      if (is_space(c)) return keep(std::move(at));
      break;
    case Kind::kLine:
      if (c == '\n') {
        ++at.index;
        return keep(std::move(at));
      }
      break;
    case Kind::kOptional: {
      Position without = at;
      without.index += element.size + 1;
      step(std::move(without), c);
      break;
    }
    case Kind::kParameters: {
      Position parameter = at;
      parameter.part = Form::kParameter;
      parameter.index = 0;
      step(std::move(parameter), c);
      break;
    }
    case Kind::kName:
      return step_captured(std::move(at), &Position::name, is_name_byte(c), c);
    case Kind::kIndex:
      return step_captured(std::move(at), &Position::id, is_name_byte(c) && c != ':', c);
    case Kind::kKey:
      return step_captured(std::move(at), &Position::key, is_key_byte(c), c);
    case Kind::kTyped:
      return step_captured(std::move(at), &Position::typed, is_name_byte(c), c);
    default:
      return start_value(std::move(at), c);
  }
  ++at.index;
  step(std::move(at), c);
}

void CallRun::step_literal(Position at, char c) {
  const std::string& text = at.pattern()[at.index].text;
  if (c != text[at.offset]) return;
  if (++at.offset < text.size()) return keep(std::move(at));
  const bool ends_parameters = at.part == Form::kCall && at.index == at.form->after_parameters &&
                               at.pattern()[at.form->parameters].kind == Kind::kParameters;
  at.offset = 0;
  ++at.index;
  at_ = std::move(at);
  if (ends_parameters) add_arguments(at_.has_argument ? "}" : "{}");
  consumed_ = at_.begun || at_.part == Form::kSeparator || at_.part == Form::kEnd;
  complete(at_);
  keep(at_);
}

// A byte may go on with what is captured, and with what follows it.
void CallRun::step_captured(Position at, std::string Position::*text, bool taken, char c) {
  if (taken && (at.*text).size() < kLongestName) {
    Position longer = at;
    longer.*text += c;
    keep(std::move(longer));
  }
  while (!(at.*text).empty() && is_space((at.*text).back())) (at.*text).pop_back();
  if ((at.*text).empty()) return;
  ++at.index;
  step(std::move(at), c);
}

void CallRun::keep(Position at) {
  const auto same = [&](const Position& other) {
    return other.form == at.form && other.part == at.part && other.index == at.index &&
           other.offset == at.offset;
  };
  if (std::ranges::none_of(next_, same)) next_.push_back(std::move(at));
}

void CallRun::start_value(Position at, char c) {
  const Pattern& pattern = at.pattern();
  const Kind kind = pattern[at.index].kind;
  if ((kind == Kind::kObject || kind == Kind::kJson) && c != '{') return;
  at_ = std::move(at);
  if (kind == Kind::kObject) {
    value_ = make_call_reader(tagged_, at_.name);
  } else if (kind == Kind::kJson) {
    value_ = make_json_reader();
  } else if (kind == Kind::kValue) {
    const bool line = pattern[at_.index + 1].kind == Kind::kLine;
    ArgumentTypes types = argument_types(parameters_of(tools_, at_.name), at_.key);
    if (!at_.typed.empty()) types = at_.typed == "true" ? kTypeText : kAnyType & ~kTypeText;
    value_ = make_value_reader(pattern[at_.index + (line ? 2 : 1)].text, line, types);
    add_arguments((std::exchange(at_.has_argument, true) ? ", " : "{") + json_string(at_.key) + ": ");
  } else {
    value_ = make_literal_reader(kind == Kind::kGemma ? dialect_.dialect->quote : std::string_view());
  }
}

ReadStatus CallRun::push_value(char c) {
  positions_.clear();
  const ReadStatus status = value_->push(c);
  if (status == ReadStatus::kError) return status;
  if (std::string json = value_->take(); !json.empty()) add_arguments(std::move(json));
  consumed_ = at_.begun;
  if (status == ReadStatus::kMore) return status;
  value_.reset();
  ++at_.index;
  if (at_.part == Form::kParameter)  // whose closing tag was its reader's
    at_.index += at_.pattern()[at_.index].kind == Kind::kLine ? 2 : 1;
  positions_.push_back(at_);
  complete(at_);
  return done_ ? ReadStatus::kEnd : ReadStatus::kMore;
}

// The sink gets the call with the first of its arguments.
void CallRun::add_arguments(std::string json) {
  ToolCallDelta call{.index = 0, .id = {}, .name = {}, .arguments = std::move(json)};
  if (!at_.begun) call.id = at_.id, call.name = at_.name;
  sink_(std::move(call));
  at_.begun = has_calls_ = true;
}

// What ends where a literal or a value does.
void CallRun::complete(const Position& at) {
  if (at.at_end())
    done_ = at.part == Form::kEnd || (at.part == Form::kCall && at.form->parts[Form::kEnd].empty());
}

std::size_t CallRun::partial() const {
  std::size_t most = 0;
  for (const Position& at : positions_) most = std::max(most, at.offset);
  return most;
}

std::vector<std::string_view> CallRun::closers() const {
  std::vector<std::string_view> tags;
  if (at_.form == nullptr) return tags;
  if (!done_) tags.assign(at_.form->closers.begin(), at_.form->closers.end());
  if (!at_.form->parts[Form::kEnd].empty()) return tags;
  for (const Element& element : at_.form->parts[Form::kSeparator])
    if (element.kind == Kind::kLiteral) tags.push_back(element.text);
  return tags;
}

}  // namespace quire::dialects
