#include "server/json_scanner.h"

#include "server/hex_digit.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

JsonStatus JsonStringReader::push(char c, std::string& decoded) {
  if (state_ == State::kHex) return push_hex(c, decoded);
  if (state_ == State::kEscape) return end_escape(c, decoded);
  if (c == '\\') {
    state_ = State::kEscape;
    return JsonStatus::kMore;
  }
  if (leading_ != 0 || static_cast<unsigned char>(c) < 0x20) return JsonStatus::kError;
  if (c == '"') return JsonStatus::kEnd;
  decoded += c;
  return JsonStatus::kMore;
}

JsonStatus JsonStringReader::end_escape(char c, std::string& decoded) {
  if (c == 'u') {
    state_ = State::kHex;
    digits_ = 0;
    unit_ = 0;
    return JsonStatus::kMore;
  }
  constexpr std::string_view kEscapes = "\"\\/bfnrt";
  constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
  const std::size_t i = kEscapes.find(c);
  if (i == kEscapes.npos || leading_ != 0) return JsonStatus::kError;
  decoded += kMeanings[i];
  state_ = State::kPlain;
  return JsonStatus::kMore;
}

JsonStatus JsonStringReader::push_hex(char c, std::string& decoded) {
  const int digit = hex_digit(c);
  if (digit < 0) return JsonStatus::kError;
  unit_ = unit_ * 16 + static_cast<std::uint32_t>(digit);
  if (++digits_ < 4) return JsonStatus::kMore;
  state_ = State::kPlain;
  const bool trailing = unit_ >= 0xDC00 && unit_ < 0xE000;
  if (trailing != (leading_ != 0)) return JsonStatus::kError;
  if (trailing) {
    append_utf8(decoded, static_cast<char32_t>(0x10000 + (leading_ - 0xD800) * 0x400 + (unit_ - 0xDC00)));
    leading_ = 0;
  } else if (unit_ >= 0xD800 && unit_ < 0xDC00) {
    leading_ = unit_;
  } else {
    append_utf8(decoded, static_cast<char32_t>(unit_));
  }
  return JsonStatus::kMore;
}

JsonStatus JsonScanner::push(char c) {
  switch (state_) {
    case State::kString: {
      decoded_.clear();
      const JsonStatus status = string_.push(c, decoded_);
      if (status != JsonStatus::kEnd) return status;
      if (!in_key_) return end_value();
      state_ = State::kColon;
      return JsonStatus::kMore;
    }
    case State::kNumber:
      if (continue_number(c)) return JsonStatus::kMore;
      if (!number_is_complete()) return JsonStatus::kError;
      if (end_value() == JsonStatus::kEnd) return JsonStatus::kPast;
      return push(c);
    case State::kLiteral:
      if (c != literal_.front()) return JsonStatus::kError;
      literal_.remove_prefix(1);
      return literal_.empty() ? end_value() : JsonStatus::kMore;
    default:
      break;
  }
  if (is_json_space(c)) return JsonStatus::kMore;
  switch (state_) {
    case State::kAfterValue:
      return after_value(c);
    case State::kColon:
      state_ = State::kValue;
      return c == ':' ? JsonStatus::kMore : JsonStatus::kError;
    case State::kFirstKey:
      if (c == '}') return after_value(c);
      [[fallthrough]];
    case State::kKey:
      in_key_ = true;
      string_ = {};
      state_ = State::kString;
      return c == '"' ? JsonStatus::kMore : JsonStatus::kError;
    case State::kFirstValue:
      if (c == ']') return after_value(c);
      [[fallthrough]];
    default:
      return begin_value(c);
  }
}

JsonStatus JsonScanner::begin_value(char c) {
  if (c == '{' || c == '[') return open(c == '{');
  if (c == '"') {
    in_key_ = false;
    string_ = {};
    state_ = State::kString;
    return JsonStatus::kMore;
  }
  if (c == '-' || is_digit(c)) {
    state_ = State::kNumber;
    number_ = Number::kSign;
    if (c != '-') continue_number(c);
    return JsonStatus::kMore;
  }
  for (const std::string_view literal : {"true", "false", "null"}) {
    if (c != literal.front()) continue;
    state_ = State::kLiteral;
    literal_ = literal.substr(1);
    return JsonStatus::kMore;
  }
  return JsonStatus::kError;
}

JsonStatus JsonScanner::open(bool object) {
  if (depth_ == kMaxDepth) return JsonStatus::kError;
  const std::uint64_t bit = std::uint64_t{1} << depth_;
  objects_ = object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  state_ = object ? State::kFirstKey : State::kFirstValue;
  return JsonStatus::kMore;
}

JsonStatus JsonScanner::after_value(char c) {
  const bool in_object = (objects_ >> (depth_ - 1) & 1) != 0;
  if (c == ',') {
    state_ = in_object ? State::kKey : State::kValue;
    return JsonStatus::kMore;
  }
  if (c != (in_object ? '}' : ']')) return JsonStatus::kError;
  --depth_;
  return end_value();
}

JsonStatus JsonScanner::end_value() {
  state_ = State::kAfterValue;
  return depth_ == 0 ? JsonStatus::kEnd : JsonStatus::kMore;
}

bool JsonScanner::continue_number(char c) {
  const auto go_to = [this](Number next) {
    number_ = next;
    return true;
  };
  const bool exponent = c == 'e' || c == 'E';
  switch (number_) {
    case Number::kSign:
      return is_digit(c) && go_to(c == '0' ? Number::kZero : Number::kInteger);
    case Number::kInteger:
      if (is_digit(c)) return true;
      [[fallthrough]];
    case Number::kZero:
      if (exponent) return go_to(Number::kExponent);
      return c == '.' && go_to(Number::kPoint);
    case Number::kPoint:
      return is_digit(c) && go_to(Number::kFraction);
    case Number::kFraction:
      return is_digit(c) || (exponent && go_to(Number::kExponent));
    case Number::kExponent:
      if (c == '+' || c == '-') return go_to(Number::kExponentSign);
      [[fallthrough]];
    case Number::kExponentSign:
      return is_digit(c) && go_to(Number::kExponentDigits);
    case Number::kExponentDigits:
      return is_digit(c);
  }
  return false;
}

bool JsonScanner::number_is_complete() const {
  return number_ == Number::kZero || number_ == Number::kInteger || number_ == Number::kFraction ||
         number_ == Number::kExponentDigits;
}

}  // namespace quire::server
