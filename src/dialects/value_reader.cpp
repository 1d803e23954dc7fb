#include "dialects/value_reader.h"

#include "base/json.h"
#include "dialects/json_text.h"

namespace quire::dialects {

ValueReader::ValueReader(std::string_view closing, bool line, ArgumentTypes types)
    : closing_((line ? "\n" : "") + std::string(closing)), line_(line), types_(types) {}

JsonStatus ValueReader::push(char c) {
  held_ += c;
  while (!held_.empty()) {
    const std::string_view closing = closing_;
    const std::string_view bare = closing.substr(line_ ? 1 : 0);
    if (held_ == closing || held_ == bare) return end();
    if (closing.starts_with(held_) || bare.starts_with(held_)) return JsonStatus::kMore;
    if (!push_value(held_.front())) return JsonStatus::kError;
    held_.erase(0, 1);
  }
  return JsonStatus::kMore;
}

bool ValueReader::push_value(char c) {
  if (!types_.other) {
    if (!std::exchange(begun_, true)) json_ = "\"";
    append_json_byte(json_, c);
    return true;
  }
  const bool opens = !begun_ && !types_.text && (c == '{' || c == '[');
  if (opens) literal_.emplace(LiteralReader::What::kValue);
  begun_ = begun_ || !is_json_space(c);
  if (!literal_) {
    whole_ += c;
    return true;
  }
  if (literal_ended_) return is_json_space(c);
  const JsonStatus status = literal_->push(c);
  json_ += literal_->take();
  literal_ended_ = status == JsonStatus::kEnd;
  return status != JsonStatus::kError;
}

JsonStatus ValueReader::end() {
  if (literal_) return literal_ended_ ? JsonStatus::kEnd : JsonStatus::kError;
  if (!types_.other) {
    json_ += begun_ ? "\"" : "\"\"";
    return JsonStatus::kEnd;
  }
  std::string word = whole_;
  while (!word.empty() && is_json_space(word.back())) word.pop_back();
  word.erase(0, word.find_first_not_of(" \t\n\r"));
  if (word == "True" || word == "False") word.front() = word == "True" ? 't' : 'f';
  if (word == "None") word = "null";
  const bool json = !word.empty() && (word.front() != '"' || !types_.text) && Json::accept(word);
  json_ = json ? word : json_string(whole_);
  return JsonStatus::kEnd;
}

}  // namespace quire::dialects
