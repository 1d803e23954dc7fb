#include "server/messages_response.h"

#include <string_view>
#include <utility>
#include <variant>

namespace quire::server {
namespace {

std::string_view anthropic_type(int status) {
  constexpr std::pair<int, std::string_view> kErrorTypes[] = {
      {401, "authentication_error"}, {403, "permission_error"}, {404, "not_found_error"},
      {413, "request_too_large"},    {429, "rate_limit_error"}, {503, "overloaded_error"}};
  for (const auto& [known, type] : kErrorTypes)
    if (known == status) return type;
  return status < 500 ? "invalid_request_error" : "api_error";
}

// Agents look for these sentences: they shorten the conversation, or the output that they ask for.
std::string overrun_message(const ContextOverrun& overrun) {
  if (overrun.prompt >= overrun.limit || overrun.output == 0)
    return format_text("prompt is too long: {} tokens > {} maximum", overrun.prompt, overrun.limit);
  return format_text(
      "input length and `max_tokens` exceed context limit: {} + {} > {}, decrease input length or "
      "`max_tokens` and try again",
      overrun.prompt, overrun.output, overrun.limit);
}

// Fields of this API, and those of a chat.
constexpr FieldName kMessageNames[] = {{"stop_sequences", "stop"},
                                       {"messages", "continue_final_message"},
                                       {"/input_schema", "/function/parameters"}};

OrderedJson message_usage(const Usage& usage) {
  OrderedJson json = {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
                      {"cache_creation_input_tokens", 0},
                      {"cache_read_input_tokens", usage.cached_tokens},
                      {"output_tokens", usage.completion_tokens}};
  if (usage.reasoning_tokens > 0)
    json["output_tokens_details"] = {{"thinking_tokens", usage.reasoning_tokens}};
  return json;
}

// A model may write arguments that are no object, or be cut off in them: these are kept in one, as Anthropic
// says that such arguments be sent back.
OrderedJson to_input(const std::string& arguments) {
  if (arguments.empty()) return OrderedJson::object();
  try {
    OrderedJson input = parse_ordered_json(arguments, "arguments");
    if (input.is_object()) return input;
  } catch (const Error&) {  // the text says what it is
  }
  return {{"INVALID_JSON", arguments}};
}

}  // namespace

OrderedJson anthropic_error(const ApiError& error, const std::string& request_id) {
  return {
      {"type", "error"},
      {"error",
       {{"type", anthropic_type(error.status)},
        {"message", error.overrun ? overrun_message(*error.overrun) : renamed(error, kMessageNames).what()}}},
      {"request_id", request_id}};
}

OrderedJson MessagesResponse::message() const {
  return {{"id", head_.id},
          {"type", "message"},
          {"role", "assistant"},
          {"model", head_.model},
          {"content", content_},
          {"stop_reason", stop_reason_},
          {"stop_sequence", stop_sequence_},
          {"usage", message_usage(usage_)}};
}

void MessagesResponse::send(const char* name, OrderedJson fields) {
  if (!form().stream) return;
  OrderedJson event = {{"type", name}};
  event.update(fields);
  events_ += to_event(event, name);
}

void MessagesResponse::send_delta(const char* type, const char* field, const std::string& text) {
  send("content_block_delta", {{"index", content_.size() - 1}, {"delta", {{"type", type}, {field, text}}}});
}

void MessagesResponse::open(const ToolCallDelta* call) {
  OrderedJson made = {{"type", "text"}, {"text", ""}};
  if (open_ == Block::kReasoning) made = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  if (open_ == Block::kCall)
    made = {{"type", "tool_use"}, {"id", call->id}, {"name", call->name}, {"input", OrderedJson::object()}};
  send("content_block_start", {{"index", content_.size()}, {"content_block", made}});
  content_.push_back(std::move(made));
}

void MessagesResponse::append(const std::string& text) {
  const bool thinks = open_ == Block::kReasoning;
  if (thinks && !include_reasoning_) return;
  if (open_ == Block::kCall) {
    arguments_ += text;
    return send_delta("input_json_delta", "partial_json", text);
  }
  const char* const field = thinks ? "thinking" : "text";
  content_.back()[field].get_ref<std::string&>() += text;
  send_delta(thinks ? "thinking_delta" : "text_delta", field, text);
}

void MessagesResponse::close(bool) {
  const Block ended = std::exchange(open_, Block::kNone);
  if (ended == Block::kReasoning) {
    content_.back()["signature"] = head_.id;
    send_delta("signature_delta", "signature", head_.id);
  }
  if (ended == Block::kCall) content_.back()["input"] = to_input(std::exchange(arguments_, {}));
  send("content_block_stop", {{"index", content_.size() - 1}});
}

// An answer always has a block, which clients look for. What the server cut short ends as if by its length.
void MessagesResponse::finish(const CompletionOutput& output) {
  if (content_.empty()) change(Block::kText);
  if (open_ != Block::kNone) close(true);
  stop_reason_ = output_.has_calls ? "tool_use" : "end_turn";
  if (output.finish_reason != FinishReason::kStop) stop_reason_ = "max_tokens";
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = *text;
  }
}

std::string MessagesResponse::last_events(const std::optional<Timings>&) {
  send("message_delta", {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                         {"usage", message_usage(usage_)}});
  send("message_stop", OrderedJson::object());
  return std::exchange(events_, {});
}

}  // namespace quire::server
