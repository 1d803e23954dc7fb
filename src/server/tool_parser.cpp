#include "server/tool_parser.h"

#include <array>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "server/call_reader.h"
#include "server/json_scanner.h"
#include "server/tag_matcher.h"

namespace quire::server {
namespace {

constexpr std::array<std::pair<ToolCallFormat, std::string_view>, 3> kNames = {{
    {ToolCallFormat::kHermes, "hermes"},
    {ToolCallFormat::kLlama3Json, "llama3_json"},
    {ToolCallFormat::kMistral, "mistral"},
}};

constexpr std::string_view kHermesEnd = "</tool_call>";
constexpr std::string_view kCalls = "[TOOL_CALLS]";

std::vector<std::string_view> tags(ToolCallFormat format) {
  if (format == ToolCallFormat::kHermes) return {"<tool_call>", kHermesEnd};
  if (format == ToolCallFormat::kLlama3Json) return {"<|python_tag|>"};
  return {kCalls};
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\n\r") == text.npos; }

bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

class ToolParser : public OutputParser {
 public:
  ToolParser(ToolCallFormat format, ToolParserOptions options)
      : format_(format), options_(std::move(options)), tags_(tags(format)) {}

  OutputDelta parse(std::string_view new_text) override {
    for (const char c : new_text) push(c);
    return std::exchange(delta_, {});
  }

  OutputDelta finish() override {
    if (calls_ == 0 || !is_blank(held_)) give_out_held(held_.size());
    return std::exchange(delta_, {});
  }

 private:
  enum class State {
    kText,           // of the content
    kOpened,         // behind a tag or a separator: a call must follow
    kObject,         // in the object that is a call
    kElement,        // in Mistral's list, before an object
    kAfterElement,   // and behind one
    kName,           // Mistral's name
    kAfterName,      // behind it, before {
    kNameTag,        // in [ARGS] or [CALL_ID]
    kCallId,         // Mistral's id, which is not used
    kNameArguments,  // behind {
  };

  void push(char c) {
    held_ += c;
    switch (state_) {
      case State::kText:
        return push_text(c);
      case State::kObject:
        return push_object(c);
      case State::kNameTag:
        return push_name_tag(c);
      case State::kNameArguments:
        return push_name_arguments(c);
      case State::kName:
      case State::kAfterName:
      case State::kCallId:
        return push_name(c);
      case State::kOpened:
        if (!is_json_space(c)) open(c);
        return;
      case State::kElement:
        if (is_json_space(c)) return;
        return c == '{' ? begin_object(CallReader::Mark::kTag) : refuse();
      case State::kAfterElement:
        if (is_json_space(c)) return;
        if (c != ',' && c != ']') return refuse();
        held_.clear();
        state_ = c == ',' ? State::kElement : State::kText;
    }
  }

  void push_text(char c) {
    const std::size_t before = tags_.held();
    const std::string_view tag = tags_.push(c);
    if (tag == kHermesEnd) {
      if (!end_expected_) return give_out_held(held_.size());
      end_expected_ = false;
      return held_.clear();
    }
    if (!tag.empty()) {
      state_ = State::kOpened;
      mark_ = CallReader::Mark::kTag;
      return;
    }
    if (tags_.held() > before) return;
    if (blank_ && before == 0) {
      if (is_json_space(c)) return;
      if (format_ == ToolCallFormat::kLlama3Json && c == '{') return begin_object(CallReader::Mark::kKeys);
      if (format_ == ToolCallFormat::kLlama3Json && c == ';' && calls_ > 0) {
        state_ = State::kOpened;
        mark_ = CallReader::Mark::kKeys;
        return held_.clear();
      }
    }
    give_out_held(held_.size() - tags_.held());
  }

  void open(char c) {
    if (format_ != ToolCallFormat::kMistral) return c == '{' ? begin_object(mark_) : refuse();
    if (c == '[') {
      state_ = State::kElement;
      in_list_ = true;
      return;
    }
    if (!is_name_byte(c)) return refuse();
    state_ = State::kName;
    name_.assign(1, c);
    in_list_ = false;
  }

  void begin_object(CallReader::Mark mark) {
    state_ = State::kObject;
    known_ = false;
    object_.emplace(mark);
  }

  void push_object(char c) {
    const JsonStatus status = object_->push(c);
    if (status == JsonStatus::kError) return refuse();
    if (object_->known()) {
      if (!known_) begin_call(object_->name());
      known_ = true;
      give_out_arguments(object_->take_arguments());
      held_.clear();
    }
    if (status == JsonStatus::kEnd) state_ = in_list_ ? State::kAfterElement : State::kText;
  }

  void push_name(char c) {
    if (c == '{') {
      begin_call(name_);
      scanner_.emplace();
      state_ = State::kNameArguments;
      return push_name_arguments(c);
    }
    if (c == '[') {
      state_ = State::kNameTag;
      name_tags_.reset();
      name_tags_.push(c);
    } else if (is_json_space(c)) {
      if (state_ == State::kName) state_ = State::kAfterName;
    } else if (state_ == State::kAfterName || !is_name_byte(c)) {
      refuse();
    } else if (state_ == State::kName) {
      name_ += c;
    }
  }

  void push_name_tag(char c) {
    const std::size_t before = name_tags_.held();
    const std::string_view tag = name_tags_.push(c);
    if (tag == kCalls) {  // no arguments came: what came is content, and a call may begin here
      give_out_held(held_.size() - tag.size());
      state_ = State::kOpened;
    } else if (!tag.empty()) {
      state_ = tag == kCallId ? State::kCallId : State::kAfterName;
    } else if (name_tags_.held() <= before) {
      refuse();
    }
  }

  void push_name_arguments(char c) {
    const JsonStatus status = scanner_->push(c);
    if (status == JsonStatus::kError) return refuse();
    give_out_arguments({&c, 1});
    held_.clear();
    if (status == JsonStatus::kEnd) state_ = State::kText;
  }

  // The last byte cannot stand where it does: what is held is text, and that byte is looked at as such.
  void refuse() {
    const char c = held_.back();
    held_.pop_back();
    if (!is_blank(held_)) give_out_held(held_.size());
    state_ = State::kText;
    push(c);
  }

  void give_out_held(std::size_t bytes) {
    if (bytes == 0) return;
    delta_.content.append(held_, 0, bytes);
    held_.erase(0, bytes);
    blank_ = false;
    end_expected_ = false;
  }

  void begin_call(const std::string& name) {
    ++calls_;
    blank_ = true;
    end_expected_ = true;
    if (dropped()) return;
    const std::string id = options_.new_id ? options_.new_id() : random_tool_call_id(format_);
    delta_.tool_calls.push_back({.index = calls_ - 1, .id = id, .name = name, .arguments = {}});
  }

  void give_out_arguments(std::string_view text) {
    if (dropped() || text.empty()) return;
    if (delta_.tool_calls.empty() || delta_.tool_calls.back().index != calls_ - 1) {
      delta_.tool_calls.push_back({.index = calls_ - 1, .id = {}, .name = {}, .arguments = {}});
    }
    delta_.tool_calls.back().arguments += text;
  }

  bool dropped() const { return calls_ > 1 && !options_.parallel_tool_calls; }

  static constexpr std::string_view kCallId = "[CALL_ID]";

  const ToolCallFormat format_;
  const ToolParserOptions options_;
  OutputDelta delta_;
  State state_ = State::kText;
  std::string held_;           // read, not given out, and not yet known to be part of a call
  bool blank_ = true;          // nothing but what is held since the start or the last call
  bool end_expected_ = false;  // nothing but white space since a call: </tool_call> belongs to it
  int calls_ = 0;
  TagMatcher tags_;

  CallReader::Mark mark_ = CallReader::Mark::kTag;
  std::optional<CallReader> object_;
  bool known_ = false;    // the object has been given out as a call
  bool in_list_ = false;  // it is an element of Mistral's list

  TagMatcher name_tags_{{"[ARGS]", kCallId, kCalls}};
  std::string name_;
  std::optional<JsonScanner<>> scanner_;  // of the arguments behind a name
};

}  // namespace

std::string_view name(ToolCallFormat format) { return kNames[static_cast<std::size_t>(format)].second; }

ToolCallFormat parse_tool_call_format(std::string_view name) {
  for (const auto& [format, known] : kNames) {
    if (name == known) return format;
  }
  fail("no tool-call parser has the name {}; there are hermes, llama3_json and mistral", name);
}

std::string random_tool_call_id(ToolCallFormat format) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  const bool mistral = format == ToolCallFormat::kMistral;
  std::string id = mistral ? "" : "call_";
  for (int i = mistral ? 9 : 24; i > 0; --i) id += kLetters[letter(random)];
  return id;
}

std::unique_ptr<OutputParser> make_tool_parser(ToolCallFormat format, ToolParserOptions options) {
  return std::make_unique<ToolParser>(format, std::move(options));
}

}  // namespace quire::server
