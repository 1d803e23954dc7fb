#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/output_parser.h"
#include "server/reasoning_parser.h"
#include "server/tool_parser.h"

namespace quire::server {

// What to look for in a model's outputs.
struct OutputFormat {
  std::optional<ReasoningFormat> reasoning;
  std::optional<ToolCallFormat> tool_calls;
};

// Reasoning first, and calls in what is content then. `prompt` as for make_reasoning_parser.
std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, std::string_view prompt,
                                                 ToolParserOptions options = {});

struct OutputFormatGuess {
  OutputFormat format;
  std::string reason;  // a line for the log
};

// By the marks that stand in the text of a chat template.
OutputFormatGuess guess_output_format(std::string_view chat_template);

}  // namespace quire::server
