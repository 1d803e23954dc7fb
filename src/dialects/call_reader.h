#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "dialects/argument_reader.h"

namespace quire::dialects {

// Reads one tool call written as a JSON object, byte by byte: "name" or "tool_name", and "arguments" or
// "parameters", in any order, other keys aside. Of keys that stand twice the first counts.
// The arguments are an object, given as it stands, or a string that holds the text of one, given decoded; an
// empty string means {}, and null means that there are none.
class CallReader final : public ArgumentReader {
 public:
  // What tells a call from any other JSON object: it stands behind a tag (then no arguments means {}), or it
  // has no key of another kind before it is known to be a call.
  enum class Mark { kTag, kKeys };

  // `name` gets the call's before there are arguments.
  CallReader(Mark mark, std::string& name);
  CallReader(const CallReader&) = delete;
  CallReader& operator=(const CallReader&) = delete;

  JsonStatus push(char c) override;
  std::string take() override { return known() ? std::exchange(arguments_, {}) : std::string(); }

 private:
  // Tells the reader of the keys and strings of the object.
  struct Parts : JsonHandler {
    explicit Parts(CallReader& to) : reader(to) {}
    bool on_object_begin(ErrorCode&) {
      ++reader.depth_;
      return true;
    }
    bool on_object_end(std::size_t, ErrorCode&) {
      --reader.depth_;
      return true;
    }
    bool on_key_part(Text part, std::size_t, ErrorCode&) {
      if (reader.depth_ == 1) reader.key_ += part;
      return true;
    }
    bool on_key(Text part, std::size_t size, ErrorCode& error) {
      reader.at_value_ = reader.depth_ == 1;
      return on_key_part(part, size, error);
    }
    bool on_string_part(Text part, std::size_t, ErrorCode& error) {
      if (!reader.take_text(part)) error = boost::json::error::syntax;
      return !error;
    }
    bool on_string(Text part, std::size_t, ErrorCode& error) {
      if (!reader.take_text(part) || !reader.end_text()) error = boost::json::error::syntax;
      return !error;
    }

    CallReader& reader;
  };
  bool known() const { return named_ && has_arguments_; }
  // The value that is being read.
  enum class Value {
    kOther,
    kName,
    kArguments,  // an object
    kText        // a string that holds the arguments
  };

  // False, as of the next three: this cannot be a call.
  bool begin_value(char c);
  bool take_text(std::string_view text);
  bool end_text();
  bool take_argument_byte(char c);

  const Mark mark_;
  JsonScanner<Parts> scanner_;
  JsonScanner<> text_scanner_;  // of the object in a string
  int depth_ = 0;               // objects that are open
  std::string key_;             // of this object itself
  bool at_value_ = false;       // a colon, blanks and the value follow
  Value value_ = Value::kOther;
  std::string& name_;
  std::string arguments_;
  bool named_ = false;
  bool has_arguments_ = false;
  bool text_ended_ = false;  // the object in the string has
};

}  // namespace quire::dialects
