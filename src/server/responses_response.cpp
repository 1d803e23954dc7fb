#include "server/responses_response.h"

#include <ctime>
#include <utility>

#include "server/response_items.h"

namespace quire::server {
namespace {

// A stream's first two events repeat the request. More of it would wait unsent before the first token.
constexpr std::size_t kLongEcho = 64 << 10;

OrderedJson responses_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

void extend(OrderedJson& list, const OrderedJson& more) { list.insert(list.end(), more.begin(), more.end()); }

}  // namespace

ResponsesResponse::ResponsesResponse(ResponseHead head, ResponsesRequest request,
                                     const ResponsesContext& context, const MakeParser& make_parser)
    : BlockResponse(std::move(head), {request.chat.stream, request.chat.timings || request.chat.metrics},
                    request.chat.include_reasoning, make_parser),
      request_(std::move(request)),
      model_(context.model),
      store_(context.store),
      key_(context.key) {
  answer_ = OrderedJson::parse(R"({"id": "", "object": "response", "created_at": 0, "completed_at": null,
      "status": "in_progress", "error": null, "incomplete_details": null, "model": "", "output": [],
      "usage": null})");
  answer_["id"] = head_.id;
  answer_["created_at"] = head_.created;
  answer_["model"] = head_.model;
}

// Both objects in one. short_echo: without what may be long.
std::string ResponsesResponse::answer_text(bool short_echo) const {
  std::string text = to_line(answer_);
  text.back() = ',';
  if (!short_echo || request_.echo.size() <= kLongEcho) return text + request_.echo.substr(1);
  OrderedJson echo = OrderedJson::parse(request_.echo);
  echo["instructions"] = nullptr;
  echo["tools"] = OrderedJson::array();
  return text + to_line(echo).substr(1);
}

// Of the item that is open, or that stands in the event itself.
void ResponsesResponse::emit(std::string_view type, OrderedJson fields) {
  if (!form().stream) return;
  OrderedJson event = {
      {"type", type}, {"sequence_number", sequence_number_++}, {"output_index", items_.size()}};
  if (!fields.contains("item")) event["item_id"] = item_["id"];
  if (!fields.contains("item") && item_.contains("content")) event["content_index"] = 0;
  for (auto& [name, value] : fields.items()) event[name] = std::move(value);
  events_ += to_event(event, type);
}

void ResponsesResponse::emit_answer(std::string_view type, bool short_echo) {
  if (!form().stream) return;
  events_ +=
      format_text("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},\"response\":{2}}}\n\n", type,
                  sequence_number_++, answer_text(short_echo));
}

void ResponsesResponse::open(const ToolCallDelta* call) {
  const bool reasons = open_ == Block::kReasoning;
  const char* const type = call ? "function_call" : reasons ? "reasoning" : "message";
  const OrderedJson empty = OrderedJson::array();
  item_ = {{"id", item_id(type, head_.id, request_.num_items + items_.size())},
           {"type", type},
           {"status", "in_progress"}};
  item_.update(call      ? OrderedJson{{"call_id", call->id}, {"name", call->name}, {"arguments", ""}}
               : reasons ? OrderedJson{{"summary", empty}, {"content", empty}}
                         : OrderedJson{{"role", "assistant"}, {"content", empty}});
  emit("response.output_item.added", {{"item", item_}});
  if (call) return new_logprobs_.clear();
  item_["content"].push_back(text_part(reasons ? "reasoning_text" : "output_text", ""));
  emit("response.content_part.added", {{"part", item_["content"][0]}});
}

void ResponsesResponse::close(bool complete) {
  if (item_.is_null()) return;
  open_ = Block::kNone;
  item_["status"] = complete ? "completed" : "incomplete";
  if (item_["type"] == "function_call") {
    emit("response.function_call_arguments.done",
         {{"name", item_["name"]}, {"arguments", item_["arguments"]}});
  } else {
    const OrderedJson& part = item_["content"][0];
    OrderedJson text = {{"text", part["text"]}};
    if (item_["type"] == "message") text["logprobs"] = part["logprobs"];
    emit(format_text("response.{}.done", part["type"].get<std::string>()), std::move(text));
    emit("response.content_part.done", {{"part", part}});
  }
  emit("response.output_item.done", {{"item", item_}});
  items_.push_back(std::exchange(item_, nullptr));
}

void ResponsesResponse::append(const std::string& text) {
  const OrderedJson logprobs = std::exchange(new_logprobs_, OrderedJson::array());
  OrderedJson fields = {{"delta", text}};
  if (open_ == Block::kCall) {
    item_["arguments"].get_ref<std::string&>() += text;
    return emit("response.function_call_arguments.delta", std::move(fields));
  }
  OrderedJson& part = item_["content"][0];
  part["text"].get_ref<std::string&>() += text;
  if (open_ == Block::kText) extend(part["logprobs"], fields["logprobs"] = logprobs);
  emit(format_text("response.{}.delta", part["type"].get<std::string>()), std::move(fields));
}

void ResponsesResponse::take(const RequestUpdate& update) {
  if (request_.chat.params.logprobs)
    extend(new_logprobs_, chat_logprobs(std::span(update.output.logprobs).subspan(output_.tokens),
                                        token_names(request_.chat, model_))["content"]);
  BlockResponse::take(update);
}

void ResponsesResponse::begin() {
  for (const char* type : {"response.created", "response.in_progress"}) emit_answer(type, true);
}

void ResponsesResponse::finish(const CompletionOutput& output) {
  const bool stopped = output.finish_reason == FinishReason::kStop;
  const bool cut = output.finish_reason == FinishReason::kLength;
  close(stopped);
  answer_["status"] = stopped ? "completed" : cut ? "incomplete" : "failed";
  if (stopped) answer_["completed_at"] = static_cast<std::int64_t>(std::time(nullptr));
  if (cut) answer_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  if (!stopped && !cut)
    answer_["error"] = {{"code", "server_error"}, {"message", "the request has timed out or was aborted"}};
}

// Of an answer that has its status. Its items stand in it from here.
void ResponsesResponse::keep(const std::optional<Timings>& timings) {
  answer_["usage"] = responses_usage(usage_);
  add_timings(answer_, request_.chat, timings, usage_);
  if (request_.store)
    store_.put(head_.id, key_, answer_text(false), std::move(request_.earlier), std::move(request_.input),
               to_line(items_));
  answer_["output"] = std::move(items_);
}

std::string ResponsesResponse::last_events(const std::optional<Timings>& timings) {
  keep(timings);
  emit_answer("response." + answer_["status"].get<std::string>());
  return std::exchange(events_, {});
}

std::string ResponsesResponse::failure_events(const ApiError& error) {
  OrderedJson said = responses_error(error, {})["error"];
  close(false);
  events_ += to_event({{"type", "error"},
                       {"sequence_number", sequence_number_++},
                       {"code", error.code.empty() ? said["type"] : said["code"]},
                       {"message", said["message"]},
                       {"param", said["param"]}},
                      "error");
  answer_["status"] = "failed";
  answer_["error"] = {{"code", error.status < 500 ? "invalid_prompt" : "server_error"},
                      {"message", std::move(said["message"])}};
  return last_events({});
}

OrderedJson ResponsesResponse::body(std::span<const RequestOutput>, const std::optional<Timings>& timings) {
  keep(timings);
  answer_.update(OrderedJson::parse(request_.echo));
  return std::move(answer_);
}

}  // namespace quire::server
