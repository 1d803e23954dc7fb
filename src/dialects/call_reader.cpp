#include "dialects/call_reader.h"

#include <algorithm>
#include <boost/json/src.hpp>  // the library itself, here alone

namespace quire::dialects {

CallReader::CallReader(Mark mark, std::string& name)
    : mark_(mark), scanner_(JsonScanner<>::kMaxDepth + 1, *this), name_(name) {}  // one level more

JsonStatus CallReader::push(char c) {
  if (at_value_ && c != ':' && !is_json_space(c)) {
    at_value_ = false;
    if (!begin_value(c)) return JsonStatus::kError;
  }
  const JsonStatus status = scanner_.push(c);
  if (status == JsonStatus::kError) return status;
  if (value_ == Value::kArguments) {
    arguments_ += c;
    if (depth_ == 1) value_ = Value::kOther;
  }
  if (status == JsonStatus::kMore) return status;
  if (!named_ || (!has_arguments_ && mark_ == Mark::kKeys)) return JsonStatus::kError;
  if (!std::exchange(has_arguments_, true)) arguments_ = "{}";
  return JsonStatus::kEnd;
}

bool CallReader::begin_value(char c) {
  const std::string key = std::exchange(key_, {});
  value_ = Value::kOther;
  if ((key == "name" || key == "tool_name") && !named_) {
    value_ = Value::kName;
    return c == '"';
  }
  if ((key == "arguments" || key == "parameters") && !has_arguments_) {
    if (c == '"') value_ = Value::kText;
    if (c == '{') value_ = Value::kArguments;
    has_arguments_ = c == '{';
    return c == '"' || c == '{' || c == 'n';
  }
  return mark_ == Mark::kTag || known() || key == "type" || key == "id" || key == "tool_call_id";
}

bool CallReader::take_text(std::string_view text) {
  if (value_ == Value::kName) name_ += text;
  return value_ != Value::kText ||
         std::all_of(text.begin(), text.end(), [&](char c) { return take_argument_byte(c); });
}

bool CallReader::end_text() {
  const Value ended = value_;
  if (ended != Value::kName && ended != Value::kText) return true;
  value_ = Value::kOther;
  if (ended == Value::kName) return named_ = !name_.empty();
  if (has_arguments_) return text_ended_;
  has_arguments_ = true;
  arguments_ = "{}";
  return true;
}

bool CallReader::take_argument_byte(char c) {
  if ((!has_arguments_ || text_ended_) && is_json_space(c)) return true;
  if (text_ended_ || (!has_arguments_ && c != '{')) return false;
  has_arguments_ = true;
  const JsonStatus status = text_scanner_.push(c);
  if (status == JsonStatus::kError) return false;
  arguments_ += c;
  text_ended_ = status == JsonStatus::kEnd;
  return true;
}

}  // namespace quire::dialects
