#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "dialects/output_format.h"
#include "server/api_request.h"
#include "server/json_fields.h"
#include "tokenizer/chat_template.h"

namespace quire::server {

// The texts of a content: a string, or a list of parts. ApiError for what is no text.
std::vector<std::string> read_texts(const OrderedJson& content, const std::string& place);
// A call's arguments, as a client sends them back: an object, or a string that holds one; null, "": none.
OrderedJson read_arguments(const OrderedJson* arguments, const std::string& place);

// A function as chats have it: of a tool, of what is chosen, and, with an id, of a call.
OrderedJson function_tool(OrderedJson function, const std::string& id = {});

// What the field reasoning_effort says, if it is there.
std::optional<std::string> read_reasoning_effort(const JsonFields& fields);

// Appends to a JSON text; null counts as an empty one.
void append_text(OrderedJson& to, const std::string& text);

// POST /v1/chat/completions.
struct ChatRequest : ApiRequest {
  OrderedJson context;         // of the chat template
  bool parse_tools = false;    // look for tool calls in the output
  bool one_tool_call = false;  // at most
  bool require_call = false;   // of `only_tool`, if that is not empty
  bool strict_tools = false;   // at least one is
  std::string only_tool;
  OrderedJson late_tools;  // that may be called, too: messages have their definitions, not the template
  bool include_reasoning = true;
  std::optional<int> thinking_token_budget;
  std::optional<std::string> final_text;  // of the last message, which the output continues
  std::string echoed;                     // of it, before the output
};

// ApiError unless they are an object of variables that a request may set.
void check_template_variables(const OrderedJson& variables, const std::string& place);

ChatRequest parse_chat_request(const OrderedJson& body, const ServedModel& model);

// What a model's template wants, found by rendering.
ContentFormat content_format(const CheckpointChatTemplate& chat_template);

// The conversation as the model's template spells it: what stands in a message never becomes a special token.
// ApiError where the template refuses it.
std::vector<TextPiece> render_chat(const ChatRequest& request, const CheckpointChatTemplate& chat_template,
                                   const RenderOptions& options);

// Holds the chat's output to what the request asks of its tools: calls where they have to be, one where one
// may be, and arguments that have their schemas where one is strict or `structured_outputs` hold the answer
// that comes instead. All of it, and `structured_outputs` themselves, begins to hold behind the reasoning,
// which `thinking_token_budget` bounds.
// format: what is looked for in the output. prompt: the text that it continues, or its end. ApiError where
// the model cannot write such calls.
void hold_output(const dialects::OutputFormat& format, std::string_view prompt, ChatRequest& request);

}  // namespace quire::server
