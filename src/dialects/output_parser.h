#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::dialects {

// What became known of one tool call.
struct ToolCallDelta {
  int index = 0;
  std::string id, name;   // with the first delta of the call, empty in all others
  std::string arguments;  // all pieces joined: JSON text of an object
};

struct OutputDelta {
  std::string content;
  std::string reasoning;
  std::vector<ToolCallDelta> tool_calls;  // at most one a call, by rising index

  bool empty() const { return content.empty() && reasoning.empty() && tool_calls.empty(); }

  // Joins it with the one that follows it, which may go on with the last call, and with no other.
  void append(const OutputDelta& next) {
    content += next.content;
    reasoning += next.reasoning;
    for (const ToolCallDelta& call : next.tool_calls) {
      const bool goes_on = !tool_calls.empty() && tool_calls.back().index == call.index;
      if (!goes_on) tool_calls.push_back(call);
      if (goes_on) tool_calls.back().arguments += call.arguments;
    }
  }
};

// Splits the text of one output into content, reasoning and tool calls while it comes. Every text has an
// answer: none is an error. How the text is cut into pieces makes no difference to the deltas joined. For one
// thread.
class OutputParser {
 public:
  virtual ~OutputParser() = default;

  // Gives out all but what may still turn out to be something else, such as the beginning of a tag.
  virtual OutputDelta parse(std::string_view new_text) = 0;
  // Gives out the rest, once the text has ended.
  virtual OutputDelta finish() = 0;
};

}  // namespace quire::dialects
