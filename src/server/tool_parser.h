#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "server/output_parser.h"

namespace quire::server {

// How a model writes its tool calls.
//   hermes       <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number; Qwen's too
//   llama3_json  {"name": …, "parameters": {…}} at the start of the output, more behind ";", or anywhere
//   behind
//                <|python_tag|>
//   mistral      [TOOL_CALLS] [{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…} for each call
// <|python_tag|> and Mistral's tags are special tokens: outputs must be decoded without skipping those.
enum class ToolCallFormat { kHermes, kLlama3Json, kMistral };

std::string_view name(ToolCallFormat format);
// Of the names above. Error on any other.
ToolCallFormat parse_tool_call_format(std::string_view name);

// Random. Mistral's templates refuse ids of other than nine letters and digits.
std::string random_tool_call_id(ToolCallFormat format);

struct ToolParserOptions {
  bool parallel_tool_calls = true;      // otherwise calls after the first are dropped
  std::function<std::string()> new_id;  // of the next call; none: random_tool_call_id
};

// Finds the calls; all other text is content, except white space that stands alone before, between or behind
// calls. A call is given out from the moment its name is known and its arguments have begun, and they are
// then passed on as they come. Text that only looked like a call until then is content. If arguments break
// off later, because the text ends or is no JSON, the call keeps what it was given (no JSON then, which
// clients must expect of any model) and the rest of the text is content.
std::unique_ptr<OutputParser> make_tool_parser(ToolCallFormat format, ToolParserOptions options = {});

}  // namespace quire::server
