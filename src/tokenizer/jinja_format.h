#pragma once

#include <string>

#include "tokenizer/jinja_value.h"

namespace quire::jinja {

// Python's str(); an undefined value prints as nothing. A text is itself, so who copies it charges for that.
const Text& text_of(Runtime& runtime, const Value& value);
Text to_repr(Runtime& runtime, const Value& value);  // Python's repr(), as inside a printed list

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level of it; absent: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style);  // Python's json.dumps

// Python's str % value, for %s %r %d %i %f %.Nf and %%.
Text percent_format(Runtime& runtime, const Text& format, const Value& value);

}  // namespace quire::jinja
