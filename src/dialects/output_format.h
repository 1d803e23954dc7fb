#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialects/output_parser.h"
#include "dialects/tables.h"

namespace quire::dialects {

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
