#include <algorithm>
#include <boost/json/src.hpp>  // the library itself, here alone
#include <utility>

#include "dialects/argument_reader.h"

namespace quire::dialects {
namespace {

class JsonReader final : public ArgumentReader {
 public:
  ReadStatus push(char c) override {
    const ReadStatus status = scanner_.push(c);
    if (status != ReadStatus::kError) json_ += c;
    return status;
  }

 private:
  JsonScanner<> scanner_;
};

class CallReader final : public ArgumentReader {
 public:
  CallReader(bool tagged, std::string& name)
      : tagged_(tagged),
        scanner_(JsonScanner<>::kMaxDepth + 1, *this),
        name_(name) {}  // the call is a level more

  ReadStatus push(char c) override {
    if (at_value_ && c != ':' && !is_space(c)) {
      at_value_ = false;
      if (!begin_value(c)) return ReadStatus::kError;
    }
    const ReadStatus status = scanner_.push(c);
    if (status == ReadStatus::kError) return status;
    if (value_ == Value::kArguments) {
      json_ += c;
      if (depth_ == 1) value_ = Value::kOther;
    }
    if (status == ReadStatus::kMore) return status;
    if (!named_ || (!has_arguments_ && !tagged_)) return ReadStatus::kError;
    if (!std::exchange(has_arguments_, true)) json_ = "{}";
    return ReadStatus::kEnd;
  }
  std::string take() override { return known() ? ArgumentReader::take() : std::string(); }

 private:
  // Tells the reader of the keys and strings of the object.
  struct Parts : JsonHandler {
    explicit Parts(CallReader& to) : reader(to) {}
    bool on_object_begin(ErrorCode&) { return ++reader.depth_; }
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
  // The value that is being read.
  enum class Value {
    kOther,
    kName,
    kArguments,  // an object
    kText        // a string that holds the arguments
  };

  bool known() const { return named_ && has_arguments_; }

  // False, as of the next three: this cannot be a call.
  bool begin_value(char c) {
    const std::string key = std::exchange(key_, {});
    value_ = Value::kOther;
    if ((key == "name" || key == "tool_name") && !named_) {
      value_ = Value::kName;
      return c == '"';
    }
    if ((key == "arguments" || key == "parameters") && !has_arguments_) {
      if (c == '"') value_ = Value::kText;
      if (c == '{') value_ = Value::kArguments;
      has_arguments_ = c == '{';
      return c == '"' || c == '{' || c == 'n';
    }
    return tagged_ || known() || key == "type" || key == "id" || key == "tool_call_id";
  }

  bool take_text(std::string_view text) {
    if (value_ == Value::kName) name_ += text;
    return value_ != Value::kText || std::ranges::all_of(text, [&](char c) { return take_argument_byte(c); });
  }

  bool end_text() {
    const Value ended = value_;
    if (ended != Value::kName && ended != Value::kText) return true;
    value_ = Value::kOther;
    if (ended == Value::kName) return named_ = !name_.empty();
    if (has_arguments_) return text_ended_;
    has_arguments_ = true;
    json_ = "{}";
    return true;
  }

  bool take_argument_byte(char c) {
    if ((!has_arguments_ || text_ended_) && is_space(c)) return true;
    if (text_ended_ || (!has_arguments_ && c != '{')) return false;
    has_arguments_ = true;
    const ReadStatus status = text_scanner_.push(c);
    if (status == ReadStatus::kError) return false;
    json_ += c;
    text_ended_ = status == ReadStatus::kEnd;
    return true;
  }

  const bool tagged_;
  JsonScanner<Parts> scanner_;
  JsonScanner<> text_scanner_;  // of the object in a string
  int depth_ = 0;               // objects that are open
  std::string key_;             // of this object itself
  bool at_value_ = false;       // a colon, blanks and the value follow
  Value value_ = Value::kOther;
  std::string& name_;
  bool named_ = false;
  bool has_arguments_ = false;
  bool text_ended_ = false;  // the object in the string has
};

}  // namespace

std::unique_ptr<ArgumentReader> make_call_reader(bool tagged, std::string& name) {
  return std::make_unique<CallReader>(tagged, name);
}

std::unique_ptr<ArgumentReader> make_json_reader() { return std::make_unique<JsonReader>(); }

}  // namespace quire::dialects
