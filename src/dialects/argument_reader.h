#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "dialects/argument_types.h"
#include "dialects/json_scanner.h"

namespace quire::dialects {

// Reads what holds a call's arguments byte by byte, and gives them as JSON.
class ArgumentReader {
 public:
  virtual ~ArgumentReader() = default;

  // kEnd: with this byte it has ended. kError: this byte cannot stand here.
  virtual ReadStatus push(char c) = 0;
  // What was read since the last call of this, so far as it is certain.
  virtual std::string take() { return std::exchange(json_, {}); }

 protected:
  std::string json_;
};

// Of one call written as a JSON object: "name" or "tool_name", and "arguments" or "parameters", in any order,
// other keys aside. Of keys that stand twice the first counts. The arguments are an object, given as it
// stands, or a string that holds the text of one, given decoded; an empty string means {}, and null means
// that there are none. `name` gets the call's before there are arguments.
// tagged: the object stands behind a tag (then no arguments means {}); otherwise it is a call only if it has
// no key of another kind before it is known to be one.
std::unique_ptr<ArgumentReader> make_call_reader(bool tagged, std::string& name);

// Of a JSON object, as it stands.
std::unique_ptr<ArgumentReader> make_json_reader();

// Of arguments as Python writes them, behind the parenthesis up to and with the one that closes it: strings
// in either quotes with Python's escapes, True, False, None, tuples (as arrays), and JSON's spelling of each.
// With a quote, of Gemma's, up to and with the brace: strings between quotes, keys without, and bare words as
// strings.
std::unique_ptr<ArgumentReader> make_literal_reader(std::string_view quote = {});

// Of the value of an argument that stands between tags, up to and with the closing one, which counts for
// nothing in a string of an object or array; line: a line break before it does not belong to the value. Where
// the schema allows text alone, it is text as it comes. Else an object or array is given as it comes if text
// is not allowed, and all other values once they are whole: JSON, and Python's True, False and None, if text
// is not allowed, or if they are of another type that is, and else text.
std::unique_ptr<ArgumentReader> make_value_reader(std::string_view closing, bool line, ArgumentTypes types);

// The types of what a value's reader takes a text for if it is no text: JSON, or one of Python's words. 0: it
// is neither.
ArgumentTypes types_read(std::string_view text);

std::string json_string(std::string_view text);

}  // namespace quire::dialects
