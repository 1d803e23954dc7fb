#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "dialects/output_parser.h"
#include "engine/request.h"

namespace quire::server {

using dialects::OutputDelta;
using dialects::OutputParser;
using dialects::ToolCallDelta;

using MakeParser = std::function<std::unique_ptr<OutputParser>()>;  // of one output's text

// One output of a chat, as it comes.
struct ChatOutput {
  std::unique_ptr<OutputParser> parser;
  std::size_t tokens = 0;  // that were taken
  std::int64_t reasoning_tokens = 0;
  bool has_calls = false;

  // What the update adds; of an output's last update, with the rest that its parser has held back.
  OutputDelta take(const RequestUpdate& update);
};

}  // namespace quire::server
