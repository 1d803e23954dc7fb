#include "server/chat_output.h"

#include <span>

namespace quire::server {
namespace {

constexpr const char* kChatObject = "chat.completion";
constexpr const char* kChunkObject = "chat.completion.chunk";

// Both names that clients know: vLLM's, and DeepSeek's.
void add_reasoning(OrderedJson& message, const std::string& reasoning) {
  message["reasoning"] = reasoning;
  message["reasoning_content"] = reasoning;
}

OrderedJson message_json(const OutputDelta& message, bool include_reasoning) {
  OrderedJson json;
  json["role"] = "assistant";
  const bool no_content =
      message.content.empty() && !(message.tool_calls.empty() && message.reasoning.empty());
  json["content"] = no_content ? OrderedJson() : OrderedJson(message.content);
  add_nulls(json, {"refusal", "annotations", "audio", "function_call", "reasoning"});
  if (include_reasoning && !message.reasoning.empty()) add_reasoning(json, message.reasoning);
  for (const ToolCallDelta& call : message.tool_calls)
    json["tool_calls"].push_back(
        function_tool({{"name", call.name}, {"arguments", call.arguments}}, call.id));
  return json;
}

// The deltas of a stream's chunks, at least one: content and reasoning, then the calls, each of a head, which
// has no arguments yet, and these. To clients a call has ended where the next one begins.
std::vector<OrderedJson> delta_jsons(const OutputDelta& delta, bool include_reasoning) {
  std::vector<OrderedJson> jsons(1, OrderedJson::object());
  if (!delta.content.empty()) jsons[0]["content"] = delta.content;
  if (include_reasoning && !delta.reasoning.empty()) add_reasoning(jsons[0], delta.reasoning);
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto add = [&](const OrderedJson& piece, bool is_alone) {
      if (is_alone && !jsons.back().empty()) jsons.emplace_back();
      jsons.back()["tool_calls"].push_back({{"index", call.index}});
      jsons.back()["tool_calls"][0].update(piece);
    };
    if (!call.id.empty())
      add(function_tool({{"name", call.name}, {"arguments", ""}}, call.id),
          jsons.back().contains("tool_calls"));
    if (!call.arguments.empty()) add({{"function", {{"arguments", call.arguments}}}}, true);
  }
  return jsons;
}

class ChatResponse final : public Response {
 public:
  ChatResponse(ResponseHead head, ChatRequest request, const ServedModel& model,
               const MakeParser& make_parser)
      : Response(std::move(head), request),
        request_(std::move(request)),
        names_(token_names(request_, model)),
        choices_(request_.params.n) {
    for (Choice& choice : choices_) choice.parser = make_parser();
  }

  OrderedJson body(Outputs outputs) override {
    const RequestOutput& output = outputs.front();
    OrderedJson body = begin_response(head_, kChatObject);
    OrderedJson& choices = body["choices"] = OrderedJson::array();
    for (std::size_t i = 0; i < output.outputs.size(); ++i) {
      const CompletionOutput& completion = output.outputs[i];
      OutputDelta& message = choices_[i].message;
      message.content.insert(0, request_.echoed);
      OrderedJson choice = {{"index", completion.index},
                            {"message", message_json(message, request_.include_reasoning)}};
      complete(choice, completion, 0);
      choice["routed_experts"] = nullptr;
      choices.push_back(std::move(choice));
    }
    body["usage"] = usage_json(usage_);
    body["system_fingerprint"] = head_.system_fingerprint;
    add_nulls(body, {"service_tier", "prompt_logprobs", "prompt_token_ids", "prompt_text",
                     "kv_transfer_params", "ec_transfer_params", "metrics"});
    if (request_.report_prompt_logprobs)
      body["prompt_logprobs"] = prompt_logprobs_json(output.prompt_logprobs, names_);
    if (request_.return_token_ids) body["prompt_token_ids"] = output.prompt_token_ids;
    add_timings(body, request_, outputs, usage_);
    return body;
  }

  std::string events(std::size_t, const RequestUpdate& update) override {
    const CompletionOutput& output = update.output;
    Choice& choice = choices_[output.index];
    const std::size_t sent = choice.tokens;
    const OutputDelta delta = choice.take(update);
    if (output.finished()) usage_.reasoning_tokens += choice.reasoning_tokens;
    if (update.finished) usage_.add(update.request);
    if (!streams()) {
      choice.message.append(delta);
      return {};
    }
    if (choice.tokens == sent && delta.empty() && !output.finished()) return {};

    std::vector<OrderedJson> chunks;
    if (!std::exchange(choice.begun, true)) add_first(update, chunks);
    const std::size_t begin = chunks.size();
    for (OrderedJson& json : delta_jsons(delta, request_.include_reasoning))
      chunks.push_back(begin_chunk(update, std::move(json)));
    if (request_.continuous_usage)
      for (OrderedJson& chunk : std::span(chunks).subspan(begin))
        chunk["usage"] = usage_json(usage_of(update));
    // What concerns the update as a whole stands in its last chunk.
    complete(chunks.back()["choices"][0], output, sent);
    if (output.finished()) chunks.back()["system_fingerprint"] = head_.system_fingerprint;
    std::string events;
    for (const OrderedJson& chunk : chunks) events += to_event(chunk);
    return events;
  }

  std::string last_events(Outputs outputs) override {
    return last_chunk(begin_response(head_, kChunkObject), request_, usage_, outputs);
  }

 private:
  struct Choice : ChatOutput {
    bool begun = false;
    OutputDelta message;  // of a whole answer: all deltas, joined
  };

  OrderedJson begin_chunk(const RequestUpdate& update, OrderedJson delta) const {
    OrderedJson choice = {{"index", update.output.index}, {"delta", std::move(delta)}};
    add_nulls(choice, {"logprobs", "finish_reason"});
    OrderedJson chunk = begin_response(head_, kChunkObject);
    chunk["choices"] = OrderedJson::array({std::move(choice)});
    return chunk;
  }

  void add_first(const RequestUpdate& update, std::vector<OrderedJson>& chunks) const {
    chunks.push_back(begin_chunk(update, {{"role", "assistant"}, {"content", ""}}));
    OrderedJson& ids = chunks.back()["prompt_token_ids"] = nullptr;
    if (request_.return_token_ids) ids = update.request.prompt_token_ids;
    if (!request_.echoed.empty()) chunks.push_back(begin_chunk(update, {{"content", request_.echoed}}));
    if (!request_.continuous_usage) return;
    Usage usage = usage_of(update);
    usage.completion_tokens = 0;
    for (OrderedJson& chunk : chunks) chunk["usage"] = usage_json(usage);
  }

  // What a choice has beside its text; sent: tokens, before.
  void complete(OrderedJson& choice, const CompletionOutput& output, std::size_t sent) const {
    choice["logprobs"] = nullptr;
    if (request_.params.logprobs)
      choice["logprobs"] = chat_logprobs(std::span(output.logprobs).subspan(sent), names_);
    if (output.finished()) add_ending(choice, output);
    // By the model's own choice, as in vLLM.
    const bool called = choices_[output.index].has_calls && request_.only_tool.empty();
    if (called && output.finish_reason == FinishReason::kStop) choice["finish_reason"] = "tool_calls";
    choice["token_ids"] = nullptr;
    if (request_.return_token_ids) choice["token_ids"] = std::span(output.token_ids).subspan(sent);
  }

  const ChatRequest request_;
  const TokenNames names_;
  std::vector<Choice> choices_;
  Usage usage_;  // of outputs that have ended
};

}  // namespace

OutputDelta ChatOutput::take(const RequestUpdate& update) {
  OutputDelta delta = parser->parse(update.new_text);
  if (update.output.finished()) delta.append(parser->finish());
  tokens = update.output.token_ids.size();
  // A token whose text was held back counts with the one that brings it out: the engine has told none of it,
  // or the parser gives out more than has come. A tag, which is dropped, does not count.
  const bool was_held = delta.reasoning.size() > update.new_text.size();
  if (!delta.reasoning.empty())
    reasoning_tokens += static_cast<std::int64_t>(tokens - (was_held ? given_out : heard));
  if (!update.new_text.empty()) heard = tokens;
  if (!delta.empty()) given_out = tokens;
  has_calls = has_calls || !delta.tool_calls.empty();
  return delta;
}

std::string BlockResponse::events(std::size_t /*prompt*/, const RequestUpdate& update) {
  const std::size_t taken = output_.tokens;
  const OutputDelta delta = output_.take(update);
  usage_ = usage_of(update);
  usage_.reasoning_tokens = output_.reasoning_tokens;
  if (output_.tokens == taken && delta.empty() && !update.output.finished()) return {};
  if (!std::exchange(begun_, true)) begin();
  add(delta);
  if (update.output.finished()) finish(update.output);
  return std::exchange(events_, {});
}

void BlockResponse::change(Block block, const ToolCallDelta* call) {
  if (open_ != Block::kNone) close(true);
  open_ = block;
  open(call);
}

// First what goes on with the open block.
void BlockResponse::add(const OutputDelta& delta) {
  const auto add_piece = [&](Block block, const std::string& text) {
    if (text.empty()) return;
    if (open_ != block) change(block);
    append(text);
  };
  std::span<const ToolCallDelta> calls = delta.tool_calls;
  if (!calls.empty() && calls.front().id.empty()) {
    if (!calls.front().arguments.empty()) append(calls.front().arguments);
    calls = calls.subspan(1);
  }
  const bool text_first = open_ == Block::kText;
  if (text_first) add_piece(Block::kText, delta.content);
  if (reasons_)
    add_piece(Block::kReasoning, delta.reasoning);
  else if (!delta.reasoning.empty())
    hide();
  if (!text_first) add_piece(Block::kText, delta.content);
  for (const ToolCallDelta& call : calls) {
    change(Block::kCall, &call);
    add_piece(Block::kCall, call.arguments);
  }
}

std::unique_ptr<Response> make_chat_response(ResponseHead head, ChatRequest request, const ServedModel& model,
                                             const MakeParser& make_parser) {
  return std::make_unique<ChatResponse>(std::move(head), std::move(request), model, make_parser);
}

}  // namespace quire::server
