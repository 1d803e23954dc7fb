#pragma once

#include <string_view>

#include "dialects/output_format.h"
#include "server/chat_request.h"

namespace quire::server {

// Holds the chat's output to what the request asks of its tools: calls where they have to be, one where one
// may be, and arguments that have their schemas where one is strict or `structured_outputs` hold the answer
// that comes instead. All of it, and `structured_outputs` themselves, begins to hold behind the reasoning,
// which `thinking_token_budget` bounds.
// format: what is looked for in the output. prompt: the text that it continues, or its end. ApiError where
// the model cannot write such calls.
void hold_output(const dialects::OutputFormat& format, std::string_view prompt, ChatRequest& request);

}  // namespace quire::server
