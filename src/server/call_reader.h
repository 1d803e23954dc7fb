#pragma once

#include <string>
#include <utility>

#include "server/json_scanner.h"

namespace quire::server {

// Reads one tool call written as a JSON object, byte by byte from behind its opening brace: "name", and
// "arguments" or "parameters", in any order, other keys aside. Of keys that stand twice the first counts.
// The arguments are an object, given as it stands, or a string that holds the text of one, given decoded; an
// empty string means {}, and null means that there are none.
class CallReader {
 public:
  // What tells a call from any other JSON object: it stands behind a tag (then no arguments means {}), or it
  // has no key of another kind before it is known to be a call.
  enum class Mark { kTag, kKeys };

  explicit CallReader(Mark mark) : mark_(mark) {}

  // kError: this byte makes it no valid call. Never kPast.
  JsonStatus push(char c);

  // It has a name, and its arguments have begun.
  bool known() const { return named_ && has_arguments_; }
  const std::string& name() const { return name_; }
  // Those read since the last call of this.
  std::string take_arguments() { return std::exchange(arguments_, {}); }

 private:
  enum class State {
    kFirstKey,
    kKeyStart,
    kKey,
    kColon,
    kValue,
    kName,
    kArguments,
    kText,
    kOther,
    kAfterValue
  };

  JsonStatus push_between(char c);
  JsonStatus push_text(char c);
  bool push_text_byte(char c);
  JsonStatus begin_value(char c);
  JsonStatus end();
  JsonStatus go_to(State state) {
    state_ = state;
    return JsonStatus::kMore;
  }

  Mark mark_;
  State state_ = State::kFirstKey;
  JsonStringReader string_;  // the key, the name, or the string that holds the arguments
  JsonScanner scanner_;      // the arguments, or another key's value
  std::string key_;
  std::string name_;
  std::string arguments_;
  std::string decoded_;
  bool named_ = false;
  bool has_arguments_ = false;
  bool text_ended_ = false;  // the object in the string has
};

}  // namespace quire::server
