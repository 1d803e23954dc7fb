#include <optional>
#include <utility>
#include <vector>

#include "base/format.h"
#include "dialects/argument_reader.h"

namespace quire::dialects {
namespace {

constexpr std::size_t kLongestWord = 4096;  // of a key, a number or a bare word, bytes

bool ends_word(char c) { return std::string_view(",)]}").find(c) != std::string_view::npos; }
bool is_bare_byte(char c) { return std::string_view("()[]{},:='\"<>").find(c) == std::string_view::npos; }

// Appends one byte of a JSON string's text, escaped where it has to be.
void append_json_byte(std::string& json, char c) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  if (const std::size_t at = kEscaped.find(c); at != kEscaped.npos) {
    json += '\\';
    json += kLetters[at];
  } else if (static_cast<unsigned char>(c) < 0x20) {
    json += format_text("\\u{:04x}", static_cast<unsigned>(c));
  } else {
    json += c;
  }
}

// Python's words as JSON's, without the white space around them.
std::string json_word(std::string_view text) {
  std::string word(trimmed(text));
  if (word == "True" || word == "False") word.front() = word == "True" ? 't' : 'f';
  return word == "None" ? "null" : word;
}

// Of arguments, or of a single value.
class LiteralReader final : public ArgumentReader {
 public:
  LiteralReader(bool arguments, std::string_view quote)
      : quote_(quote), state_(arguments ? &LiteralReader::push_key : &LiteralReader::push_value) {
    if (arguments) levels_.push_back({.json = '}', .written = quote.empty() ? ')' : '}', .before = "{"});
  }

  ReadStatus push(char c) override { return (this->*state_)(c); }
  bool in_string() const {
    return state_ == &LiteralReader::push_string || state_ == &LiteralReader::push_escape ||
           state_ == &LiteralReader::push_octal;
  }

 private:
  using State = ReadStatus (LiteralReader::*)(char);  // takes the next byte
  struct Level {
    char json, written;            // what closes it in either
    std::string_view before = "";  // what is written before the next key or element
  };

  bool gemma() const { return !quote_.empty(); }
  bool in_object() const { return !levels_.empty() && levels_.back().json != ']'; }
  bool closes(char c) const { return !levels_.empty() && c == levels_.back().written; }
  char assigns() const { return levels_.back().written == ')' ? '=' : ':'; }
  ReadStatus become(State state) {
    state_ = state;
    return ReadStatus::kMore;
  }

  ReadStatus push_key(char c) {
    if (is_space(c)) return ReadStatus::kMore;
    if (closes(c)) return close();
    key_ = true;
    const bool bare = gemma() || levels_.back().written == ')';
    if (gemma() ? c == quote_.front() : !bare && (c == '"' || c == '\'')) return begin_quote(c);
    if (!bare || !is_bare_byte(c)) return ReadStatus::kError;
    word_.assign(1, c);
    return become(&LiteralReader::push_bare_key);
  }

  ReadStatus push_bare_key(char c) {
    if (c != assigns()) {
      const bool goes_on = is_bare_byte(c) && (is_space(c) || !is_space(word_.back()));
      word_ += c;
      return goes_on && word_.size() <= kLongestWord ? ReadStatus::kMore : ReadStatus::kError;
    }
    separate();
    json_ += json_string(trimmed(word_)) + ": ";
    return become(&LiteralReader::push_value);
  }

  ReadStatus push_assign(char c) {
    if (is_space(c)) return ReadStatus::kMore;
    if (c != assigns()) return ReadStatus::kError;
    json_ += ": ";
    return become(&LiteralReader::push_value);
  }

  ReadStatus push_value(char c) {
    if (is_space(c)) return ReadStatus::kMore;
    key_ = false;
    if (closes(c) && !in_object()) return close();
    if (c == '[' || c == '{' || (c == '(' && !gemma())) return open(c);
    if (gemma() ? c == quote_.front() : c == '"' || c == '\'') return begin_quote(c);
    if (!is_bare_byte(c)) return ReadStatus::kError;
    word_.assign(1, c);
    return become(&LiteralReader::push_word);
  }

  ReadStatus push_word(char c) {
    if (!ends_word(c) && (gemma() || !is_space(c))) {
      word_ += c;
      return word_.size() <= kLongestWord ? ReadStatus::kMore : ReadStatus::kError;
    }
    const std::string word = json_word(word_);
    const bool json = is_json(word);
    if (!json && !gemma()) return ReadStatus::kError;
    separate();
    json_ += json ? word : json_string(word);
    const ReadStatus status = end_value();
    return status == ReadStatus::kMore ? push(c) : status;
  }

  ReadStatus begin_quote(char c) {
    string_quote_ = gemma() ? std::string(quote_) : std::string(1, c);
    word_.clear();
    state_ = &LiteralReader::push_quote;
    return push_quote(c);
  }

  ReadStatus push_quote(char c) {
    word_ += c;
    if (word_ != string_quote_)
      return string_quote_.starts_with(word_) ? ReadStatus::kMore : ReadStatus::kError;
    separate();
    json_ += '"';
    word_.clear();
    return become(&LiteralReader::push_string);
  }

  ReadStatus push_string(char c) {
    if (c == '\\' && !gemma()) return become(&LiteralReader::push_escape);
    if (surrogate_) return ReadStatus::kError;
    word_ += c;
    if (word_ == string_quote_) {
      json_ += '"';
      return key_ ? become(&LiteralReader::push_assign) : end_value();
    }
    for (; !string_quote_.starts_with(word_); word_.erase(0, 1)) append_json_byte(json_, word_.front());
    return ReadStatus::kMore;
  }

  ReadStatus push_escape(char c) {
    constexpr std::string_view kLetters = "ntrbfav\"\\'/", kBytes = "\n\t\r\b\f\a\v\"\\'/";
    if (surrogate_ && c != 'u') return ReadStatus::kError;
    digits_ = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    code_ = 0;
    if (digits_ > 0) return become(&LiteralReader::push_hex);
    if (c >= '0' && c <= '7') {
      digits_ = 3;
      state_ = &LiteralReader::push_octal;
      return push_octal(c);
    }
    const std::size_t at = kLetters.find(c);
    if (at == kLetters.npos && c != '\n')
      json_ += "\\\\";  // a backslash that escapes nothing stands for itself
    if (c != '\n') append_json_byte(json_, at == kLetters.npos ? c : kBytes[at]);
    return become(&LiteralReader::push_string);
  }

  ReadStatus push_hex(char c) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    const std::size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
    if (digit == kDigits.npos) return ReadStatus::kError;
    code_ = code_ << 4 | static_cast<unsigned>(digit);
    if (--digits_ > 0) return ReadStatus::kMore;
    const bool second = code_ >= 0xDC00 && code_ < 0xE000;
    if (second != surrogate_ || code_ > 0x10FFFF) return ReadStatus::kError;
    if (code_ >= 0x10000) {
      json_ += format_text("\\u{:04x}", 0xD7C0 + (code_ >> 10));
      code_ = 0xDC00 | (code_ & 0x3FF);
    }
    json_ += format_text("\\u{:04x}", code_);
    surrogate_ = code_ >= 0xD800 && code_ < 0xDC00;
    return become(&LiteralReader::push_string);
  }

  ReadStatus push_octal(char c) {
    if (digits_ > 0 && c >= '0' && c <= '7') {
      --digits_;
      code_ = code_ << 3 | static_cast<unsigned>(c - '0');
      return ReadStatus::kMore;
    }
    json_ += format_text("\\u{:04x}", code_);
    state_ = &LiteralReader::push_string;
    return push(c);
  }

  ReadStatus open(char opener) {
    if (levels_.size() == JsonScanner<>::kMaxDepth) return ReadStatus::kError;
    separate();
    const char json = opener == '{' ? '}' : ']';
    json_ += opener == '{' ? '{' : '[';
    levels_.push_back({.json = json, .written = opener == '(' ? ')' : json});
    return become(opener == '{' ? &LiteralReader::push_key : &LiteralReader::push_value);
  }

  ReadStatus close() {
    if (levels_.back().before == "{") json_ += '{';
    json_ += levels_.back().json;
    levels_.pop_back();
    return end_value();
  }

  ReadStatus push_after(char c) {
    if (is_space(c)) return ReadStatus::kMore;
    if (c == ',') return become(in_object() ? &LiteralReader::push_key : &LiteralReader::push_value);
    return closes(c) ? close() : ReadStatus::kError;
  }

  ReadStatus end_value() {
    state_ = &LiteralReader::push_after;
    return levels_.empty() ? ReadStatus::kEnd : ReadStatus::kMore;
  }

  // Before a key, or an element of a list: what stands between it and the one before.
  void separate() {
    if (levels_.empty() || (in_object() && !key_)) return;
    json_ += std::exchange(levels_.back().before, ", ");
  }

  const std::string_view quote_;  // Gemma's; empty: Python's
  State state_;
  std::vector<Level> levels_;
  std::string word_;          // a bare key or word, or the part of `string_quote_` that came
  std::string string_quote_;  // around the string that is read
  bool key_ = false;          // the string that is read is one
  int digits_ = 0;            // of an escape, still to come
  unsigned code_ = 0;
  bool surrogate_ = false;  // the first of two came
};

class ValueReader final : public ArgumentReader {
 public:
  ValueReader(std::string_view closing, bool line, ArgumentTypes types)
      : closing_((line ? "\n" : "") + std::string(closing)), line_(line), types_(types) {}

  ReadStatus push(char c) override {
    const std::string_view closing = closing_, bare = closing.substr(line_ ? 1 : 0);
    if (literal_ && literal_->in_string()) return push_value(c) ? ReadStatus::kMore : ReadStatus::kError;
    for (held_ += c; !held_.empty(); held_.erase(0, 1)) {
      if (held_ == closing || held_ == bare) return end();
      if (closing.starts_with(held_) || bare.starts_with(held_)) return ReadStatus::kMore;
      if (!push_value(held_.front())) return ReadStatus::kError;
    }
    return ReadStatus::kMore;
  }

 private:
  bool push_value(char c) {
    const bool first = !std::exchange(begun_, begun_ || types_ == kTypeText || !is_space(c));
    if (types_ == kTypeText) {
      if (first) json_ = "\"";
      append_json_byte(json_, c);
      return true;
    }
    const bool text = (types_ & kTypeText) != 0;
    const ArgumentTypes opened = c == '[' ? kTypeArray : c == '{' ? kTypeObject : 0;
    if (first && opened != 0 && (!text || (types_ & opened) != 0))
      literal_.emplace(false, std::string_view());
    // Of what may be text, the literal only tells where strings are.
    if (text && literal_ && literal_->push(c) != ReadStatus::kMore) literal_.reset();
    if (text || !literal_) {
      whole_ += c;
      return true;
    }
    if (literal_ended_) return is_space(c);
    const ReadStatus status = literal_->push(c);
    json_ += literal_->take();
    literal_ended_ = status == ReadStatus::kEnd;
    return status != ReadStatus::kError;
  }

  ReadStatus end() {
    const bool text = (types_ & kTypeText) != 0;
    if (literal_ && !text) return literal_ended_ ? ReadStatus::kEnd : ReadStatus::kError;
    if (types_ == kTypeText) {
      json_ += begun_ ? "\"" : "\"\"";
    } else {
      const ArgumentTypes read = types_read(whole_), wanted = text ? types_ & ~kTypeText : kAnyType;
      json_ = (read & wanted) != 0 ? json_word(whole_) : json_string(whole_);
    }
    return ReadStatus::kEnd;
  }

  const std::string closing_;  // with the line break, where there is one
  const bool line_;
  const ArgumentTypes types_;
  std::string held_;   // may turn out to be the closing tag
  std::string whole_;  // of a value that is given at its end
  std::optional<LiteralReader> literal_;
  bool literal_ended_ = false;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<ArgumentReader> make_literal_reader(std::string_view quote) {
  return std::make_unique<LiteralReader>(true, quote);
}

std::unique_ptr<ArgumentReader> make_value_reader(std::string_view closing, bool line, ArgumentTypes types) {
  return std::make_unique<ValueReader>(closing, line, types);
}

ArgumentTypes types_read(std::string_view text) {
  const std::string word = json_word(text);
  if (!is_json(word)) return 0;
  constexpr std::pair<char, ArgumentTypes> kFirst[] = {{'"', kTypeText},    {'n', kTypeNull},
                                                       {'t', kTypeBoolean}, {'f', kTypeBoolean},
                                                       {'[', kTypeArray},   {'{', kTypeObject}};
  for (const auto& [first, types] : kFirst)
    if (word.front() == first) return types;
  // A number of any size.
  return word.find_first_of(".eE") == word.npos ? kTypeInteger | kTypeNumber : kTypeNumber;
}

std::string json_string(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) append_json_byte(json, c);
  return json + '"';
}

}  // namespace quire::dialects
