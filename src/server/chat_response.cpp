#include "server/chat_response.h"

#include <utility>

namespace quire::server {
namespace {

constexpr const char* kChatObject = "chat.completion";
constexpr const char* kChunkObject = "chat.completion.chunk";

// Both names that clients know: vLLM's, and DeepSeek's.
void add_reasoning(OrderedJson& message, const std::string& reasoning) {
  message["reasoning"] = reasoning;
  message["reasoning_content"] = reasoning;
}

OrderedJson call_json(const ToolCallDelta& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

OrderedJson message_json(const OutputDelta& message, bool include_reasoning) {
  OrderedJson json;
  json["role"] = "assistant";
  const bool no_content =
      message.content.empty() && !(message.tool_calls.empty() && message.reasoning.empty());
  json["content"] = no_content ? OrderedJson() : OrderedJson(message.content);
  json["refusal"] = nullptr;
  json["reasoning"] = nullptr;
  if (include_reasoning && !message.reasoning.empty()) add_reasoning(json, message.reasoning);
  for (const ToolCallDelta& call : message.tool_calls) json["tool_calls"].push_back(call_json(call));
  return json;
}

// Content, reasoning and the heads of new tool calls: these have no arguments yet.
OrderedJson delta_json(const OutputDelta& delta, bool include_reasoning) {
  OrderedJson json = OrderedJson::object();
  if (!delta.content.empty()) json["content"] = delta.content;
  if (include_reasoning && !delta.reasoning.empty()) add_reasoning(json, delta.reasoning);
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (call.id.empty()) continue;
    OrderedJson head = {{"index", call.index}};
    head.update(call_json({.index = call.index, .id = call.id, .name = call.name, .arguments = ""}));
    json["tool_calls"].push_back(std::move(head));
  }
  return json;
}

// The arguments of the delta's tool calls.
OrderedJson arguments_json(const OutputDelta& delta) {
  OrderedJson json = OrderedJson::object();
  for (const ToolCallDelta& call : delta.tool_calls) {
    if (call.arguments.empty()) continue;
    json["tool_calls"].push_back({{"index", call.index}, {"function", {{"arguments", call.arguments}}}});
  }
  return json;
}

void end_choice(OrderedJson& choice, const CompletionOutput& output, bool has_calls) {
  add_ending(choice, output);
  if (has_calls && output.finish_reason == FinishReason::kStop) choice["finish_reason"] = "tool_calls";
}

}  // namespace

void ChatOutput::add(const OutputDelta& delta, std::int64_t num_tokens) {
  append(message, delta);
  if (!delta.reasoning.empty()) reasoning_tokens += num_tokens;
}

OrderedJson chat_body(const ResponseHead& head, const ChatRequest& request, const RequestOutput& output,
                      std::span<const ChatOutput> parsed, const ServedModel& model,
                      const std::optional<Timings>& timings) {
  OrderedJson body = begin_response(head, kChatObject);
  const TokenNames names = token_names(request, model);
  Usage usage;
  usage.add(output);
  OrderedJson choices = OrderedJson::array();
  for (std::size_t i = 0; i < output.outputs.size(); ++i) {
    const CompletionOutput& completion = output.outputs[i];
    OrderedJson choice;
    choice["index"] = completion.index;
    choice["message"] = message_json(parsed[i].message, request.include_reasoning);
    choice["logprobs"] = request.params.logprobs ? chat_logprobs(completion.logprobs, names) : OrderedJson();
    end_choice(choice, completion, !parsed[i].message.tool_calls.empty());
    if (request.return_token_ids) add_token_ids(choice, completion.token_ids);
    choices.push_back(std::move(choice));
    usage.reasoning_tokens += parsed[i].reasoning_tokens;
  }
  body["choices"] = std::move(choices);
  body["usage"] = usage_json(usage);
  add_fingerprint(body, head);
  if (request.report_prompt_logprobs)
    body["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs, names);
  if (request.return_token_ids) body["prompt_token_ids"] = output.prompt_token_ids;
  if (timings) body["timings"] = timings_json(*timings, usage);
  return body;
}

ChatStream::ChatStream(ResponseHead head, const ChatRequest& request, const ServedModel& model)
    : head_(std::move(head)),
      request_(request),
      model_(model),
      choices_(static_cast<std::size_t>(request.params.n)) {}

OrderedJson ChatStream::begin_chunk(const RequestUpdate& update, OrderedJson delta) const {
  OrderedJson choice;
  choice["index"] = update.output.index;
  choice["delta"] = std::move(delta);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  OrderedJson chunk = begin_response(head_, kChunkObject);
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  return chunk;
}

void ChatStream::add_first(const RequestUpdate& update, std::vector<OrderedJson>& chunks) const {
  chunks.push_back(begin_chunk(update, {{"role", "assistant"}, {"content", ""}}));
  if (request_.return_token_ids) chunks.back()["prompt_token_ids"] = update.request.prompt_token_ids;
  if (request_.continuous_usage) {
    Usage usage = usage_of(update);
    usage.completion_tokens = 0;
    chunks.back()["usage"] = usage_json(usage);
  }
}

// What concerns the update as a whole stands in its last chunk.
void ChatStream::complete(OrderedJson& chunk, const RequestUpdate& update, const Choice& sent) const {
  const CompletionOutput& output = update.output;
  OrderedJson& choice = chunk["choices"][0];
  if (request_.params.logprobs) {
    choice["logprobs"] =
        chat_logprobs(std::span(output.logprobs).subspan(sent.tokens), token_names(request_, model_));
  }
  if (output.finished()) {
    end_choice(choice, output, sent.has_calls);
    add_fingerprint(chunk, head_);
  }
  if (request_.return_token_ids) add_token_ids(choice, std::span(output.token_ids).subspan(sent.tokens));
  if (request_.continuous_usage) chunk["usage"] = usage_json(usage_of(update));
}

std::vector<OrderedJson> ChatStream::chunks(const RequestUpdate& update, const OutputDelta& delta) {
  const CompletionOutput& output = update.output;
  Choice& sent = choices_[static_cast<std::size_t>(output.index)];
  const std::int64_t num_new = std::ssize(output.token_ids) - static_cast<std::int64_t>(sent.tokens);
  usage_ = {};
  usage_.add(update.request);
  std::vector<OrderedJson> chunks;
  if (num_new == 0 && delta.empty() && !output.finished()) return chunks;

  if (!sent.begun) add_first(update, chunks);
  sent.begun = true;
  if (!delta.reasoning.empty()) sent.reasoning_tokens += num_new;
  sent.has_calls = sent.has_calls || !delta.tool_calls.empty();
  OrderedJson first = delta_json(delta, request_.include_reasoning);
  OrderedJson arguments = arguments_json(delta);
  if (!first.empty() || arguments.empty()) chunks.push_back(begin_chunk(update, std::move(first)));
  if (!arguments.empty()) chunks.push_back(begin_chunk(update, std::move(arguments)));
  complete(chunks.back(), update, sent);
  sent.tokens = output.token_ids.size();
  return chunks;
}

std::optional<OrderedJson> ChatStream::last(const std::optional<Timings>& timings) const {
  Usage usage = usage_;
  for (const Choice& choice : choices_) usage.reasoning_tokens += choice.reasoning_tokens;
  return last_chunk(begin_response(head_, kChunkObject), request_, usage, timings);
}

}  // namespace quire::server
