#include "server/messages_response.h"

#include <array>
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

// With this API's names of what the request was translated to.
std::string renamed(std::string message) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"stop ", "stop_sequences "},
                                                                      {"continue_final_message", "messages"}};
  for (const auto& [ours, theirs] : kNames)
    if (message.starts_with(ours)) return message.replace(0, ours.size(), theirs);
  constexpr std::string_view kSchema = "/function/parameters";  // of a JSON pointer into the tools
  if (const std::size_t at = message.find(kSchema); at != std::string::npos)
    message.replace(at, kSchema.size(), "/input_schema");
  return message;
}

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
  return {{"type", "error"},
          {"error",
           {{"type", anthropic_type(error.status)},
            {"message", error.overrun ? overrun_message(*error.overrun) : renamed(error.what())}}},
          {"request_id", request_id}};
}

MessagesResponse::MessagesResponse(ResponseHead head, const ChatRequest& request, std::string request_id,
                                   const MakeParser& make_parser)
    : Response(std::move(head), {.stream = request.stream}),
      include_reasoning_(request.include_reasoning),
      request_id_(std::move(request_id)) {
  output_.parser = make_parser();
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
  OrderedJson event = {{"type", name}};
  event.update(fields);
  events_ += to_event(event, name);
}

void MessagesResponse::begin(Block block, const ToolCallDelta* call) {
  end();
  open_ = block;
  OrderedJson made;
  if (block == Block::kThinking) made = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
  if (block == Block::kText) made = {{"type", "text"}, {"text", ""}};
  if (block == Block::kToolUse) {
    made = {{"type", "tool_use"}, {"id", call->id}, {"name", call->name}};
    made["input"] = OrderedJson::object();
  }
  if (form().stream)
    send("content_block_start", {{"index", num_ended_}, {"content_block", std::move(made)}});
  else
    content_.push_back(std::move(made));
}

void MessagesResponse::add_piece(const std::string& text) {
  if (text.empty()) return;
  constexpr std::array<const char*, 4> kFields = {"", "thinking", "text", "partial_json"};
  constexpr std::array<const char*, 4> kDeltas = {"", "thinking_delta", "text_delta", "input_json_delta"};
  const auto kind = static_cast<std::size_t>(open_);
  if (form().stream)
    send("content_block_delta",
         {{"index", num_ended_}, {"delta", {{"type", kDeltas[kind]}, {kFields[kind], text}}}});
  else if (open_ == Block::kToolUse)
    arguments_ += text;
  else
    content_.back()[kFields[kind]].get_ref<std::string&>() += text;
}

void MessagesResponse::end() {
  const Block ended = std::exchange(open_, Block::kNone);
  if (ended == Block::kNone) return;
  if (form().stream) {
    if (ended == Block::kThinking)
      send("content_block_delta",
           {{"index", num_ended_}, {"delta", {{"type", "signature_delta"}, {"signature", head_.id}}}});
    send("content_block_stop", {{"index", num_ended_}});
  } else {
    if (ended == Block::kThinking) content_.back()["signature"] = head_.id;
    if (ended == Block::kToolUse) content_.back()["input"] = to_input(std::exchange(arguments_, {}));
  }
  ++num_ended_;
}

void MessagesResponse::add(const OutputDelta& delta) {
  const auto add_text = [&](Block block, const std::string& text, bool is_shown) {
    if (text.empty()) return;
    if (open_ != block) begin(block);
    if (is_shown) add_piece(text);
  };
  auto call = delta.tool_calls.begin();
  // What goes on with the open call was written before all else.
  if (call != delta.tool_calls.end() && call->id.empty()) add_piece((call++)->arguments);
  add_text(Block::kThinking, delta.reasoning, include_reasoning_);
  add_text(Block::kText, delta.content, true);
  for (; call != delta.tool_calls.end(); ++call) {
    begin(Block::kToolUse, &*call);
    add_piece(call->arguments);
  }
}

// An answer always has a block, which clients look for. What the server cut short ends as if by its length.
void MessagesResponse::finish(const CompletionOutput& output) {
  if (open_ == Block::kNone && num_ended_ == 0) begin(Block::kText);
  end();
  stop_reason_ = output_.has_calls ? "tool_use" : "end_turn";
  if (output.finish_reason != FinishReason::kStop) stop_reason_ = "max_tokens";
  if (const auto* text = std::get_if<std::string>(&output.stop_reason)) {
    stop_reason_ = "stop_sequence";
    stop_sequence_ = *text;
  }
}

void MessagesResponse::take(const RequestUpdate& update) {
  const OutputDelta delta = output_.take(update);
  usage_ = usage_of(update);
  usage_.reasoning_tokens = output_.reasoning_tokens;
  if (form().stream && !begun_ && (output_.tokens > 0 || update.output.finished())) {
    begun_ = true;
    send("message_start", {{"message", message()}});
  }
  add(delta);
  if (update.output.finished()) finish(update.output);
}

std::string MessagesResponse::events(std::size_t, const RequestUpdate& update) {
  take(update);
  return std::exchange(events_, {});
}

std::string MessagesResponse::last_events(const std::optional<Timings>&) {
  send("message_delta", {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                         {"usage", message_usage(usage_)}});
  send("message_stop", OrderedJson::object());
  return std::exchange(events_, {});
}

std::string MessagesResponse::failure_events(const ApiError& error) {
  return to_event(anthropic_error(error, request_id_), "error");
}

OrderedJson MessagesResponse::body(std::span<const RequestOutput>, const std::optional<Timings>&) {
  return message();
}

}  // namespace quire::server
