#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/call_run.h"
#include "dialects/output_format.h"

namespace quire::dialects {

// The state machine between the tables and the deltas. Text is either reasoning or content; the tags that may
// come in it depend on that. A tag that begins calls hands over to a CallRun, until that ends or refuses.
class OutputSplitter final : public OutputParser, private CallSink {
 public:
  OutputSplitter(const OutputFormat& format, std::string_view prompt, ToolParserOptions options);

  OutputDelta parse(std::string_view new_text) override;
  OutputDelta finish() override;

 private:
  enum class Mode { kReasoning, kContent };
  enum class Action { kBegin, kEnd, kDrop, kClose, kCalls };
  struct Tag {
    std::string_view text;
    Action action;
  };
  // Calls in reasoning, which may be no more than mentioned: they count if nothing else follows.
  struct Mention {
    std::string text;
    std::vector<ToolCallDelta> calls;
    int calls_before;
  };

  void begin_call(const std::string& name, const std::string& written_id) override;
  void add_arguments(std::string_view json) override;

  void push(char c);
  void push_text(char c);
  void push_call(char c);
  bool on_tag(const Tag& tag);
  void refuse();
  void begin_run(std::string_view trigger);
  void enter(Mode mode);
  void give_out(std::size_t bytes);
  void end_mention(std::size_t unread);
  bool holds_blank() const { return at_start_ || (tools_ != nullptr && mode_ == Mode::kContent && blank_); }
  void drop_held() {
    held_.clear();
    known_blank_ = partial_ = 0;
  }
  void find_tags();
  bool dropped(int call) const { return call > 0 && !options_.parallel_tool_calls; }

  const ReasoningDialect* reasoning_;
  const CompiledDialect* tools_;
  const ToolParserOptions options_;
  OutputDelta delta_;
  Mode mode_ = Mode::kContent;
  bool at_start_ = false;        // reasoning may begin: nothing but white space since the output's start
  bool blank_ = true;            // nothing but white space since the output's start, a call or reasoning
  bool wrapped_ = false;         // a tag of the reasoning's dialect opened the content
  std::string held_;             // read, not given out, and not yet known to be part of a call
  std::size_t partial_ = 0;      // bytes at its end that may become a tag
  std::size_t known_blank_ = 0;  // bytes at its beginning that were looked at, and are white space
  int calls_ = 0;
  std::vector<Tag> tags_;    // that may come now
  std::bitset<256> starts_;  // their first bytes
  std::vector<std::string_view> closers_;
  std::optional<CallRun> run_;
  std::optional<Mention> mention_;
};

}  // namespace quire::dialects
