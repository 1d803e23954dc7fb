#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dialects/argument_reader.h"

namespace quire::dialects {

// Reads a value, or the arguments of a call, as Python, JSON or Gemma write them, byte by byte, and gives
// JSON. Python's: strings in either quotes with Python's escapes, True, False, None, tuples (as arrays), and
// JSON's spelling of each. Gemma's: strings between `quote`, keys without, and bare words as strings.
class LiteralReader final : public ArgumentReader {
 public:
  // Arguments begin behind the parenthesis or brace, and end with it.
  enum class What { kValue, kArguments };
  // quote: Gemma's; empty: Python's.
  explicit LiteralReader(What what, std::string_view quote = {});

  // kError: this byte cannot stand here.
  JsonStatus push(char c) override;
  std::string take() override { return std::exchange(json_, {}); }

 private:
  enum class State { kKey, kBareKey, kAssign, kValue, kQuote, kWord, kString, kEscape, kHex, kAfter };
  struct Level {
    char json, written;  // what closes it in either
    bool empty = true;
  };

  bool closes(char c) const { return !levels_.empty() && c == levels_.back().written; }
  char assigns() const { return levels_.back().written == ')' ? '=' : ':'; }
  bool gemma() const { return !quote_.empty(); }
  bool in_object() const { return !levels_.empty() && levels_.back().json != ']'; }
  JsonStatus push_key(char c);
  JsonStatus push_bare_key(char c);
  JsonStatus push_value(char c);
  JsonStatus push_quote(char c);
  JsonStatus push_word(char c);
  JsonStatus push_string(char c);
  JsonStatus push_escape(char c);
  JsonStatus push_hex(char c);
  JsonStatus push_after(char c);
  JsonStatus open(char closer, State state);
  JsonStatus close();
  JsonStatus end_value();
  JsonStatus end_string();
  bool end_word();
  void separate();
  void begin_string(char quote);
  JsonStatus become(State state);

  const std::string_view quote_;
  const bool arguments_;
  State state_;
  std::vector<Level> levels_;
  std::string word_;  // a bare key or word, or the part of `quote_` that came
  std::string json_;
  char string_quote_ = 0;
  bool key_ = false;        // the string that is read is one
  std::size_t digits_ = 0;  // of a \x, \u or \U, still to come
  unsigned code_ = 0;
  unsigned high_ = 0;  // the first of two surrogates, whose second has to follow
};

}  // namespace quire::dialects
