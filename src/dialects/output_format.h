#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialects/tables.h"

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
    for (const ToolCallDelta& call : next.tool_calls) add(call);
  }
  void add(ToolCallDelta call) {
    if (!tool_calls.empty() && tool_calls.back().index == call.index)
      tool_calls.back().arguments += call.arguments;
    else
      tool_calls.push_back(std::move(call));
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

// What to look for in a model's outputs; nullptr: nothing.
struct OutputFormat {
  const ReasoningDialect* reasoning = nullptr;
  const ToolDialect* tool_calls = nullptr;
};

// The tags between which the reasoning of an output stands, if such a parser would find any behind `prompt`,
// the text that the output continues, or its end; `end` is with all that comes before what follows. No end:
// it has none. No begin: the output begins within it.
struct ReasoningTags {
  std::string begin = {}, end = {};
};
ReasoningTags reasoning_tags(const ReasoningDialect& dialect, std::string_view prompt);

struct ToolParserOptions {
  bool parallel_tool_calls = true;           // otherwise calls after the first are dropped
  std::function<std::string()> new_id;       // of the next call; none: random_call_id
  std::shared_ptr<const OrderedJson> tools;  // as OpenAI's requests have them, for types; may be nullptr
};

// Reasoning comes first; white space before its tag is dropped, other text passes as it stands. `prompt` says
// whether the output begins within reasoning.
// Reasoning that the end of the text cuts off stays reasoning, but for calls with which it ends. All other
// text than calls is content, except white space that stands alone before, between or behind them.
// A call is given out from the moment its name is known and its arguments have begun, and they are then
// passed on as they come. Text that only looked like a call until then is content. If arguments break off
// later, because the text ends or is none of the dialect's, the call keeps what it was given (no JSON then,
// which clients must expect of any model) and the rest of the text is content.
std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, std::string_view prompt,
                                                 ToolParserOptions options = {});

// Random, of letters and digits.
std::string random_call_id(CallIds ids);

// The tags by which outputs are split: a tokenizer may have them as special tokens.
std::vector<std::string> tags_of(const OutputFormat& format);

struct OutputFormatGuess {
  OutputFormat format;
  std::string reason;  // a line for the log
};

// By the marks that stand in the text of a chat template.
OutputFormatGuess guess_output_format(std::string_view chat_template);

}  // namespace quire::dialects
