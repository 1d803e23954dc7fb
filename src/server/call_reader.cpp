#include "server/call_reader.h"

namespace quire::server {
namespace {

bool is_arguments_key(const std::string& key) { return key == "arguments" || key == "parameters"; }

}  // namespace

JsonStatus CallReader::push(char c) {
  JsonStatus status = JsonStatus::kMore;
  switch (state_) {
    case State::kKey:
      status = string_.push(c, key_);
      return status == JsonStatus::kEnd ? go_to(State::kColon) : status;
    case State::kName:
      status = string_.push(c, name_);
      if (status != JsonStatus::kEnd) return status;
      named_ = !name_.empty();
      return named_ ? go_to(State::kAfterValue) : JsonStatus::kError;
    case State::kArguments:
      status = scanner_.push(c);
      if (status == JsonStatus::kError) return status;
      arguments_ += c;
      return status == JsonStatus::kEnd ? go_to(State::kAfterValue) : status;
    case State::kText:
      return push_text(c);
    case State::kOther:
      status = scanner_.push(c);
      if (status == JsonStatus::kMore || status == JsonStatus::kError) return status;
      state_ = State::kAfterValue;
      return status == JsonStatus::kEnd ? JsonStatus::kMore : push_between(c);
    default:
      return push_between(c);
  }
}

JsonStatus CallReader::push_between(char c) {
  if (is_json_space(c)) return JsonStatus::kMore;
  switch (state_) {
    case State::kFirstKey:
      if (c == '}') return end();
      [[fallthrough]];
    case State::kKeyStart:
      key_.clear();
      string_ = {};
      return c == '"' ? go_to(State::kKey) : JsonStatus::kError;
    case State::kColon:
      return c == ':' ? go_to(State::kValue) : JsonStatus::kError;
    case State::kAfterValue:
      if (c == '}') return end();
      return c == ',' ? go_to(State::kKeyStart) : JsonStatus::kError;
    default:
      return begin_value(c);
  }
}

JsonStatus CallReader::begin_value(char c) {
  string_ = {};
  scanner_ = {};
  if (key_ == "name" && !named_) return c == '"' ? go_to(State::kName) : JsonStatus::kError;
  if (is_arguments_key(key_) && !has_arguments_) {
    if (c == '"') return go_to(State::kText);
    if (c == '{') {
      has_arguments_ = true;
      state_ = State::kArguments;
      return push(c);
    }
    if (c != 'n') return JsonStatus::kError;
  } else if (mark_ == Mark::kKeys && !known() && key_ != "type" && key_ != "id") {
    return JsonStatus::kError;
  }
  state_ = State::kOther;
  return push(c);
}

JsonStatus CallReader::push_text(char c) {
  decoded_.clear();
  const JsonStatus status = string_.push(c, decoded_);
  for (const char byte : decoded_) {
    if (!push_text_byte(byte)) return JsonStatus::kError;
  }
  if (status != JsonStatus::kEnd) return status;
  if (!has_arguments_) {
    has_arguments_ = true;
    arguments_ = "{}";
  } else if (!text_ended_) {
    return JsonStatus::kError;
  }
  return go_to(State::kAfterValue);
}

bool CallReader::push_text_byte(char c) {
  if ((!has_arguments_ || text_ended_) && is_json_space(c)) return true;
  if (text_ended_ || (!has_arguments_ && c != '{')) return false;
  has_arguments_ = true;
  const JsonStatus status = scanner_.push(c);
  if (status == JsonStatus::kError) return false;
  arguments_ += c;
  text_ended_ = status == JsonStatus::kEnd;
  return true;
}

JsonStatus CallReader::end() {
  if (!named_ || (!has_arguments_ && mark_ == Mark::kKeys)) return JsonStatus::kError;
  if (!has_arguments_) {
    has_arguments_ = true;
    arguments_ = "{}";
  }
  return JsonStatus::kEnd;
}

}  // namespace quire::server
