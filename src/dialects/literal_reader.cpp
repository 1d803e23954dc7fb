#include "dialects/literal_reader.h"

#include "base/json.h"
#include "dialects/json_text.h"

namespace quire::dialects {
namespace {

constexpr std::size_t kLongestWord = 4096;  // of a key, a number or a bare word, bytes

bool ends_word(char c) { return std::string_view(",)]}").find(c) != std::string_view::npos; }

bool is_key_byte(char c) { return std::string_view("()[]{},:='\"<>").find(c) == std::string_view::npos; }

}  // namespace

LiteralReader::LiteralReader(What what, std::string_view quote)
    : quote_(quote), arguments_(what == What::kArguments), state_(arguments_ ? State::kKey : State::kValue) {
  if (arguments_) levels_.push_back({.json = '}', .written = quote.empty() ? ')' : '}'});
}

JsonStatus LiteralReader::push(char c) {
  switch (state_) {
    case State::kKey:
      return push_key(c);
    case State::kBareKey:
      return push_bare_key(c);
    case State::kAssign:
      if (is_json_space(c)) return JsonStatus::kMore;
      if (c != assigns()) return JsonStatus::kError;
      json_ += ": ";
      return become(State::kValue);
    case State::kValue:
      return push_value(c);
    case State::kQuote:
      return push_quote(c);
    case State::kWord:
      return push_word(c);
    case State::kString:
      return push_string(c);
    case State::kEscape:
      return push_escape(c);
    case State::kHex:
      return push_hex(c);
    case State::kAfter:
      return push_after(c);
  }
  return JsonStatus::kError;
}

JsonStatus LiteralReader::become(State state) {
  state_ = state;
  return JsonStatus::kMore;
}

JsonStatus LiteralReader::push_key(char c) {
  if (is_json_space(c)) return JsonStatus::kMore;
  if (closes(c)) return close();
  key_ = true;
  const bool bare = gemma() || levels_.back().written == ')';
  if (gemma() && c == quote_.front()) {
    word_.assign(1, c);
    return become(State::kQuote);
  }
  if (!gemma() && !bare && (c == '"' || c == '\'')) {
    begin_string(c);
    return JsonStatus::kMore;
  }
  if (!bare || !is_key_byte(c)) return JsonStatus::kError;
  word_.assign(1, c);
  return become(State::kBareKey);
}

JsonStatus LiteralReader::push_bare_key(char c) {
  if (c != assigns()) {
    const bool goes_on = is_key_byte(c) && (is_json_space(c) || !is_json_space(word_.back()));
    word_ += c;
    return goes_on && word_.size() <= kLongestWord ? JsonStatus::kMore : JsonStatus::kError;
  }
  while (is_json_space(word_.back())) word_.pop_back();
  separate();
  json_ += json_string(word_) + ": ";
  return become(State::kValue);
}

JsonStatus LiteralReader::push_value(char c) {
  if (is_json_space(c)) return JsonStatus::kMore;
  key_ = false;
  if (closes(c) && !in_object()) return close();
  if (c == '[') return open(c, State::kValue);
  if (c == '(' && !gemma()) return open(c, State::kValue);
  if (c == '{') return open(c, State::kKey);
  if (gemma() && c == quote_.front()) {
    word_.assign(1, c);
    return become(State::kQuote);
  }
  if (!gemma() && (c == '"' || c == '\'')) {
    begin_string(c);
    return JsonStatus::kMore;
  }
  if (ends_word(c) || !is_key_byte(c)) return JsonStatus::kError;
  word_.assign(1, c);
  return become(State::kWord);
}

// The quote that begins one of Gemma's strings.
JsonStatus LiteralReader::push_quote(char c) {
  word_ += c;
  if (!quote_.starts_with(word_)) return JsonStatus::kError;
  if (word_ == quote_) begin_string(0);
  return JsonStatus::kMore;
}

JsonStatus LiteralReader::push_word(char c) {
  if (!ends_word(c) && (gemma() || !is_json_space(c))) {
    word_ += c;
    return word_.size() <= kLongestWord ? JsonStatus::kMore : JsonStatus::kError;
  }
  if (!end_word()) return JsonStatus::kError;
  const JsonStatus status = end_value();
  return status == JsonStatus::kMore ? push_after(c) : status;
}

bool LiteralReader::end_word() {
  while (is_json_space(word_.back())) word_.pop_back();
  if (word_ == "True" || word_ == "False") word_.front() = word_ == "True" ? 't' : 'f';
  if (word_ == "None") word_ = "null";
  const bool json = Json::accept(word_);
  if (!json && !gemma()) return false;
  separate();
  json_ += json ? word_ : json_string(word_);
  return true;
}

void LiteralReader::begin_string(char quote) {
  separate();
  json_ += '"';
  string_quote_ = quote;
  word_.clear();
  state_ = State::kString;
}

JsonStatus LiteralReader::push_string(char c) {
  if (gemma()) {
    word_ += c;
    if (word_ == quote_) return end_string();
    while (!quote_.starts_with(word_)) {
      append_json_byte(json_, word_.front());
      word_.erase(0, 1);
    }
    return JsonStatus::kMore;
  }
  if (c == '\\') return become(State::kEscape);
  if (high_ != 0) return JsonStatus::kError;
  if (c == string_quote_) return end_string();
  append_json_byte(json_, c);
  return JsonStatus::kMore;
}

JsonStatus LiteralReader::end_string() {
  json_ += '"';
  word_.clear();
  return key_ ? become(State::kAssign) : end_value();
}

JsonStatus LiteralReader::push_escape(char c) {
  if (high_ != 0 && c != 'u') return JsonStatus::kError;
  state_ = State::kString;
  switch (c) {
    case 'x':
    case 'u':
    case 'U':
      digits_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      code_ = 0;
      return become(State::kHex);
    case 'n':
    case 't':
    case 'r':
    case 'b':
    case 'f':
    case '\\':
    case '"':
      json_ += '\\';
      json_ += c;
      break;
    case 'a':
    case 'v':
    case '0':
      append_json_byte(json_, c == 'a' ? '\a' : c == 'v' ? '\v' : '\0');
      break;
    case '\n':
      break;
    default:
      if (c != '\'' && c != '/') json_ += "\\\\";
      append_json_byte(json_, c);
  }
  return JsonStatus::kMore;
}

JsonStatus LiteralReader::push_hex(char c) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const std::size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
  if (digit == kDigits.npos) return JsonStatus::kError;
  code_ = code_ << 4 | static_cast<unsigned>(digit);
  if (--digits_ > 0) return JsonStatus::kMore;
  state_ = State::kString;
  const bool low = code_ >= 0xDC00 && code_ < 0xE000;
  if (low != (high_ != 0) || code_ > 0x10FFFF) return JsonStatus::kError;
  if (code_ >= 0x10000) {
    json_ += format_text("\\u{:04x}", 0xD7C0 + (code_ >> 10));
    code_ = 0xDC00 | (code_ & 0x3FF);
  }
  json_ += format_text("\\u{:04x}", code_);
  high_ = code_ >= 0xD800 && code_ < 0xDC00 ? code_ : 0;
  return JsonStatus::kMore;
}

JsonStatus LiteralReader::push_after(char c) {
  if (is_json_space(c)) return JsonStatus::kMore;
  if (c == ',') return become(in_object() ? State::kKey : State::kValue);
  return closes(c) ? close() : JsonStatus::kError;
}

JsonStatus LiteralReader::open(char opener, State state) {
  if (levels_.size() == JsonScanner<>::kMaxDepth) return JsonStatus::kError;
  separate();
  json_ += opener == '{' ? '{' : '[';
  const char json = opener == '{' ? '}' : ']';
  levels_.push_back({.json = json, .written = opener == '(' ? ')' : json});
  return become(state);
}

JsonStatus LiteralReader::close() {
  if (arguments_ && levels_.size() == 1 && levels_.back().empty) json_ += '{';
  json_ += levels_.back().json;
  levels_.pop_back();
  return end_value();
}

JsonStatus LiteralReader::end_value() {
  state_ = State::kAfter;
  return levels_.empty() ? JsonStatus::kEnd : JsonStatus::kMore;
}

// Before a key, or an element of a list: what stands between it and the one before.
void LiteralReader::separate() {
  if (levels_.empty() || (in_object() && !key_)) return;
  Level& level = levels_.back();
  if (arguments_ && levels_.size() == 1 && level.empty) json_ += '{';
  if (!level.empty) json_ += ", ";
  level.empty = false;
}

}  // namespace quire::dialects
