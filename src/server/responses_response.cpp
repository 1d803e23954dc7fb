#include "server/responses_response.h"

#include <ctime>
#include <iterator>
#include <utility>

namespace quire::server {
namespace {

// A stream's first events repeat the request. More of it than this would wait unsent before the first token.
constexpr std::size_t kLongEcho = 64 << 10;

OrderedJson responses_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

void append(OrderedJson& list, const OrderedJson& more) { list.insert(list.end(), more.begin(), more.end()); }

}  // namespace

ResponsesResponse::ResponsesResponse(ResponseHead head, ResponsesRequest request,
                                     const ResponsesContext& context, const MakeParser& make_parser)
    : Response(std::move(head), {request.chat.stream, request.chat.timings}),
      request_(std::move(request)),
      model_(context.model),
      store_(context.store),
      key_(context.key) {
  answer_ = {{"id", head_.id},
             {"object", "response"},
             {"created_at", head_.created},
             {"completed_at", nullptr},
             {"status", "in_progress"},
             {"error", nullptr},
             {"incomplete_details", nullptr},
             {"model", head_.model},
             {"output", OrderedJson::array()},
             {"usage", nullptr}};
  answer_.update(request_.echo);
  output_.parser = make_parser();
}

void ResponsesResponse::emit(std::string_view type, OrderedJson fields) {
  if (!form().stream) return;
  OrderedJson event = {{"type", type}, {"sequence_number", sequence_number_++}};
  for (auto& [name, value] : fields.items()) event[name] = std::move(value);
  events_ += to_event(event, type);
}

// Of the open item.
void ResponsesResponse::emit_of_item(std::string_view type, OrderedJson fields) {
  if (!form().stream) return;
  fields["item_id"] = item_.id;
  fields["output_index"] = items_.size();
  emit(type, std::move(fields));
}

void ResponsesResponse::begin() {
  if (!form().stream || std::exchange(begun_, true)) return;
  OrderedJson short_answer = answer_;
  if (to_line(short_answer).size() > kLongEcho) {
    short_answer["instructions"] = nullptr;
    short_answer["tools"] = OrderedJson::array();
  }
  for (const char* type : {"response.created", "response.in_progress"})
    emit(type, {{"response", short_answer}});
}

OrderedJson ResponsesResponse::open_item() const {
  OrderedJson json = item_json(item_);
  if (item_.type == "message")
    for (OrderedJson& part : json["content"]) part["logprobs"] = logprobs_;
  return json;
}

void ResponsesResponse::open(ResponseItem item) {
  close(true);
  item_ = std::move(item);
  item_.id = item_id(item_.type, head_.id, request_.num_items + items_.size());
  item_.status = "in_progress";
  emit("response.output_item.added", {{"output_index", items_.size()}, {"item", open_item()}});
  if (item_.type == "function_call") return;
  item_.texts = {""};
  emit_of_item("response.content_part.added", {{"content_index", 0}, {"part", open_item()["content"][0]}});
}

void ResponsesResponse::close(bool complete) {
  if (item_.type.empty()) return;
  item_.status = complete ? "completed" : "incomplete";
  OrderedJson item = open_item();
  if (item_.type == "function_call") {
    emit_of_item("response.function_call_arguments.done",
                 {{"name", item_.name}, {"arguments", item_.arguments}});
  } else {
    const bool is_message = item_.type == "message";
    OrderedJson text = {{"content_index", 0}, {"text", item_.texts.front()}};
    if (is_message) text["logprobs"] = logprobs_;
    emit_of_item(is_message ? "response.output_text.done" : "response.reasoning_text.done", std::move(text));
    emit_of_item("response.content_part.done", {{"content_index", 0}, {"part", item["content"][0]}});
  }
  emit("response.output_item.done", {{"output_index", items_.size()}, {"item", item}});
  items_.push_back(std::move(item));
  item_ = {};
  logprobs_.clear();
}

void ResponsesResponse::add_text(std::string_view type, const std::string& text) {
  if (text.empty()) return;
  if (item_.type != type) open({.type = std::string(type), .role = "assistant"});
  item_.texts.front() += text;
  OrderedJson logprobs = std::exchange(new_logprobs_, OrderedJson::array());
  const bool is_message = type == "message";
  if (is_message) append(logprobs_, logprobs);
  if (!form().stream) return;
  OrderedJson fields = {{"content_index", 0}, {"delta", text}};
  if (is_message) fields["logprobs"] = std::move(logprobs);
  emit_of_item(is_message ? "response.output_text.delta" : "response.reasoning_text.delta",
               std::move(fields));
}

void ResponsesResponse::add_call(const ToolCallDelta& call) {
  if (!call.id.empty()) open({.type = "function_call", .call_id = call.id, .name = call.name});
  new_logprobs_.clear();
  if (call.arguments.empty()) return;
  item_.arguments += call.arguments;
  emit_of_item("response.function_call_arguments.delta", {{"delta", call.arguments}});
}

// First what goes on with the open item.
void ResponsesResponse::add(const OutputDelta& delta) {
  std::span<const ToolCallDelta> calls = delta.tool_calls;
  if (!calls.empty() && calls.front().id.empty()) {
    add_call(calls.front());
    calls = calls.subspan(1);
  }
  const bool content_first = item_.type == "message";
  if (content_first) add_text("message", delta.content);
  if (request_.chat.include_reasoning) add_text("reasoning", delta.reasoning);
  if (!content_first) add_text("message", delta.content);
  for (const ToolCallDelta& call : calls) add_call(call);
}

void ResponsesResponse::take(const RequestUpdate& update) {
  const CompletionOutput& output = update.output;
  const std::size_t taken = output_.tokens;
  const OutputDelta delta = output_.take(update);
  if (request_.chat.params.logprobs)
    append(new_logprobs_, chat_logprobs(std::span(output.logprobs).subspan(taken),
                                        token_names(request_.chat, model_))["content"]);
  usage_ = usage_of(update);
  usage_.reasoning_tokens = output_.reasoning_tokens;
  if (output_.tokens == taken && delta.empty() && !output.finished()) return;
  begin();
  add(delta);
  if (output.finished()) finish(output);
}

void ResponsesResponse::finish(const CompletionOutput& output) {
  close(output.finish_reason == FinishReason::kStop);
  if (output.finish_reason == FinishReason::kStop) {
    answer_["status"] = "completed";
    answer_["completed_at"] = static_cast<std::int64_t>(std::time(nullptr));
  } else if (output.finish_reason == FinishReason::kLength) {
    answer_["status"] = "incomplete";
    answer_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  } else {
    answer_["status"] = "failed";
    answer_["error"] = {{"code", "server_error"}, {"message", "the request has timed out or was aborted"}};
  }
}

// Of an answer that has its status; keeps it.
void ResponsesResponse::complete(const std::optional<Timings>& timings) {
  answer_["usage"] = responses_usage(usage_);
  if (timings) answer_["timings"] = timings_json(*timings, usage_);
  if (request_.store)
    store_.put(head_.id, key_, to_line(answer_), request_.earlier, request_.input, to_line(items_));
  answer_["output"] = std::move(items_);
  emit(format_text("response.{}", answer_["status"].get<std::string>()), {{"response", answer_}});
}

std::string ResponsesResponse::events(std::size_t, const RequestUpdate& update) {
  take(update);
  return std::exchange(events_, {});
}

std::string ResponsesResponse::last_events(const std::optional<Timings>& timings) {
  complete(timings);
  return std::exchange(events_, {});
}

std::string ResponsesResponse::failure_events(const ApiError& error) {
  const ApiError said = responses_error(error);
  close(false);
  emit("error", {{"code", said.code.empty() ? said.type : said.code},
                 {"message", said.what()},
                 {"param", said.param.empty() ? OrderedJson() : OrderedJson(said.param)}});
  answer_["status"] = "failed";
  answer_["error"] = {{"code", said.status < 500 ? "invalid_prompt" : "server_error"},
                      {"message", said.what()}};
  return last_events({});
}

OrderedJson ResponsesResponse::body(std::span<const RequestOutput>, const std::optional<Timings>& timings) {
  complete(timings);
  return std::move(answer_);
}

}  // namespace quire::server
