#include "server/responses.h"

#include <algorithm>
#include <ctime>
#include <set>
#include <unordered_map>
#include <utility>

#include "server/response_items.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxOtherBytes = 4 << 20;  // beside the input: most of it waits with the request
constexpr std::string_view kLogprobs = "message.output_text.logprobs";

// Its fields, and those of a chat.
constexpr FieldName kResponseNames[] = {{"text.format", R"(response_format(\.json_schema)?)"},
                                        {"max_output_tokens", "max(_completion)?_tokens"},
                                        {"reasoning.effort", "reasoning_effort"},
                                        {"input", "messages"},
                                        {"", R"(\.function(?=\.))"}};

// The messages of a conversation's items, and the new ones of these as they are kept.
class Conversation {
 public:
  explicit Conversation(const ResponsesContext& context) : context_(context) {}

  // Of a turn before, or none that is kept.
  void add(const OrderedJson& item) {
    bytes_ += to_line(item).size();
    if (bytes_ > ResponseStore::kMaxConversationBytes)
      throw ApiError(
          400, format_text("the conversation has more than {} bytes", ResponseStore::kMaxConversationBytes),
          "input");
    add_message(item);
  }

  void add_earlier(const std::vector<StoredText>& items) {
    for (const StoredText& list : items)
      for (const OrderedJson& item : parse_text(*list, "the conversation", "")) add(item);
  }

  void add_input(const OrderedJson& input) {
    if (input.is_string()) return add_new(read_item({{"role", "user"}, {"content", input}}, "input"));
    if (!input.is_array()) refuse("input", "is {}; it must be a string or a list of items", shown(input));
    for (std::size_t i = 0; i < input.size(); ++i) {
      const std::string place = format_text("input[{}]", i);
      OrderedJson item = read_item(input[i], place);
      add_new(item["type"] == "item_reference" ? find(item["id"], place) : std::move(item));
    }
  }

  // Its messages, and what of it the answer needs to know.
  OrderedJson finish(ResponsesRequest& request) {
    request.num_items = num_new_;
    request.input = std::move(input_) + "]";
    return std::move(messages_);
  }

 private:
  void add_new(OrderedJson item) {
    if (item["id"] == "") item["id"] = item_id(item["type"].get<std::string>(), context_.id, num_new_);
    add(item);
    input_ += (num_new_++ == 0 ? "" : ",") + to_line(item);
  }

  // A call that was cut off is left out, and so is what came of it. A later one may have its id.
  void add_message(const OrderedJson& item) {
    const bool is_call = item["type"] == "function_call";
    if (is_call || item["type"] == "function_call_output") {
      const auto id = item["call_id"].get<std::string>();
      if (is_call && item["status"] == "incomplete")
        cut_calls_.insert(id);
      else if (is_call)
        cut_calls_.erase(id);
      else if (cut_calls_.count(id) > 0)
        return;
    }
    add_to_chat(item, messages_);
  }

  // An item of a response that is kept.
  const OrderedJson& find(const std::string& id, const std::string& place) {
    const bool is_known = found_.count(id) > 0;
    const auto kept = is_known ? nullptr : context_.store.find(response_of_item(id), context_.key);
    for (std::size_t i = kept ? kept->items.size() - 2 : 0; kept && i < kept->items.size(); ++i) {
      bytes_ += kept->items[i]->size();
      for (OrderedJson& item : parse_text(*kept->items[i], "the conversation", ""))
        found_.emplace(item["id"].get<std::string>(), std::move(item));
    }
    const auto found = found_.find(id);
    if (found == found_.end())
      throw ApiError(404, format_text("{}: there is no item {}", place, in_quotes(id)), place);
    return found->second;
  }

  const ResponsesContext& context_;
  OrderedJson messages_ = OrderedJson::array();
  std::string input_ = "[";
  std::size_t num_new_ = 0;
  std::size_t bytes_ = 0;                               // of all items, and those that were looked through
  std::unordered_map<std::string, OrderedJson> found_;  // of responses that were referred to
  std::set<std::string> cut_calls_;                     // ids of those that are incomplete
};

// What it asks for can be had; metadata is as OpenAI bounds it.
void check_response_fields(const JsonFields& fields) {
  refuse_unsupported(fields, {"background", "conversation", "prompt", "max_tool_calls", "context_management",
                              "moderation", "prompt_logprobs", "return_token_ids"});
  if (fields.asks("response_format"))
    throw ApiError(400, "\"response_format\" is text.format here", "text.format");
  fields.choice("truncation", {"disabled"});
  fields.integer("n", 1, 1);
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "service_tier"})
    fields.text(name);
  const auto metadata = fields.get("metadata", to_object).value_or(OrderedJson::object());
  if (metadata.size() > 16) refuse("metadata", "has {} pairs; it may have 16", metadata.size());
  for (const auto& [key, value] : metadata.items())
    if (count_code_points(key) > 64 || count_code_points(to_text(value, "metadata." + in_quotes(key))) > 512)
      refuse("metadata", "has {}; a key may have 64 characters, its value 512", in_quotes(key));
}

// Of {type: function, name, …}: OpenAI has tools of other types.
const std::string& function_name(const JsonFields& function) {
  function.required_choice("type", {"function"});
  return function.required_text("name");
}

// Leaves of the tools those that may be called. What is to be chosen of them.
OrderedJson allow_tools(const JsonFields& choice, OrderedJson& tools) {
  std::set<std::string> allowed;
  for (const JsonFields& named : choice.required("tools", to_objects)) allowed.insert(function_name(named));
  const auto is_other = [&](const OrderedJson& tool) { return allowed.erase(tool["function"]["name"]) == 0; };
  tools.erase(std::remove_if(tools.begin(), tools.end(), is_other), tools.end());
  if (!allowed.empty())
    refuse("tool_choice", "names {}, which is none of the tools", in_quotes(*allowed.begin()));
  return choice.required("mode");
}

void translate_tools(const JsonFields& fields, OrderedJson& chat) {
  OrderedJson tools = OrderedJson::array();
  for (const JsonFields& tool : fields.objects("tools")) {
    OrderedJson function = {{"name", function_name(tool)}};
    for (const char* name : {"description", "parameters", "strict"})
      if (const OrderedJson* field = tool.find(name)) function[name] = *field;
    tools.push_back(function_tool(std::move(function)));
  }
  if (const OrderedJson* choice = fields.find("tool_choice"); choice != nullptr && choice->is_object()) {
    const JsonFields named(*choice, "tool_choice");
    // Not one conditional expression: GCC 12 destroys a list in it that an exception kept from being made.
    if (named.get("type", to_text) == "allowed_tools")
      chat["tool_choice"] = allow_tools(named, tools);
    else
      chat["tool_choice"] = function_tool({{"name", function_name(named)}});
  }
  chat["tools"] = std::move(tools);
}

// Whose other fields are those of the body.
OrderedJson to_chat_body(OrderedJson body, OrderedJson messages) {
  OrderedJson chat;
  const JsonFields fields(body);
  translate_tools(fields, chat);
  if (const auto reasoning = fields.object("reasoning"))
    if (const OrderedJson* effort = reasoning->find("effort")) chat["reasoning_effort"] = *effort;
  const auto text = fields.object("text");
  if (auto format = text ? text->get("format", to_object) : std::nullopt) {
    if (format->value("type", OrderedJson()) == "json_schema") {
      erase_key(*format, "type");
      format = {{"type", "json_schema"}, {"json_schema", *std::move(format)}};
    }
    chat["response_format"] = *std::move(format);
  }
  const auto include = fields.get("include", to_list).value_or(OrderedJson());
  for (std::size_t i = 0; i < include.size(); ++i)
    if (to_choice(include[i], format_text("include[{}]", i), {kLogprobs, "reasoning.encrypted_content"}) ==
        kLogprobs)
      chat["logprobs"] = true;
  for (auto& [name, value] : chat.items()) body[name] = std::move(value);
  body["max_tokens"] = nullptr;
  if (!chat.contains("logprobs"))
    for (const char* name : {"logprobs", "top_logprobs"}) body[name] = nullptr;
  body["max_completion_tokens"] = std::exchange(body["max_output_tokens"], nullptr);
  body["messages"] = std::move(messages);
  return body;
}

// The shortest number that is this one.
OrderedJson number_json(float value) { return std::stod(format_text("{}", value)); }

std::string echo_of(const JsonFields& fields, const ResponsesRequest& request) {
  OrderedJson echo = OrderedJson::parse(
      R"({"background": false, "instructions": null, "max_output_tokens": null, "max_tool_calls": null,
          "metadata": {}, "previous_response_id": null, "prompt_cache_key": null,
          "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "text": {},
          "tool_choice": "auto", "tools": [], "truncation": "disabled", "user": null})");
  for (auto& [name, value] : echo.items())
    if (const OrderedJson* given = fields.find(name)) value = *given;
  if (echo["text"].value("format", OrderedJson()).is_null()) echo["text"]["format"] = {{"type", "text"}};
  // As numbers and flags, which may have come as texts.
  if (fields.find("max_output_tokens") != nullptr) echo["max_output_tokens"] = *request.chat.max_tokens;
  echo["parallel_tool_calls"] = fields.boolean("parallel_tool_calls").value_or(true);
  echo["top_logprobs"] = fields.integer("top_logprobs", 0, kLargestInt).value_or(0);
  echo["service_tier"] = "default";
  echo["store"] = request.store;
  echo["temperature"] = number_json(request.chat.params.temperature);
  echo["top_p"] = number_json(request.chat.params.top_p);
  return to_line(echo);
}

// A stream's first two events repeat the request. More of it would wait unsent before the first token.
constexpr std::size_t kLongEcho = 64 << 10;

OrderedJson responses_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// Whether the next turn takes these arguments of a call: they may break off.
bool are_whole(const OrderedJson& arguments) {
  try {
    read_arguments(&arguments, "arguments");
    return true;
  } catch (const ApiError&) {
    return false;
  }
}

void extend(OrderedJson& list, const OrderedJson& more) { list.insert(list.end(), more.begin(), more.end()); }

class ResponsesResponse final : public BlockResponse {
 public:
  ResponsesResponse(ResponseHead head, ResponsesRequest request, const ResponsesContext& context,
                    const MakeParser& make_parser)
      : BlockResponse(std::move(head), request.chat, request.chat.include_reasoning, make_parser),
        request_(std::move(request)),
        context_(context) {
    answer_ = OrderedJson::parse(R"({"id": "", "object": "response", "created_at": 0, "completed_at": null,
        "status": "in_progress", "error": null, "incomplete_details": null, "model": "", "output": [],
        "usage": null})");
    answer_["id"] = head_.id;
    answer_["created_at"] = head_.created;
    answer_["model"] = head_.model;
  }

  std::string last_events(Outputs outputs) override {
    keep(outputs);
    emit_answer("response." + answer_["status"].get<std::string>());
    return std::exchange(events_, {});
  }

  std::string failure_events(const ApiError& error) override {
    OrderedJson said = responses_error(error, {})["error"];
    close(false);
    events_ += to_event({{"type", "error"},
                         {"sequence_number", sequence_number_++},
                         {"code", said["type"]},
                         {"message", said["message"]},
                         {"param", said["param"]}},
                        "error");
    answer_["status"] = "failed";
    answer_["error"] = {{"code", error.status < 500 ? "invalid_prompt" : "server_error"},
                        {"message", std::move(said["message"])}};
    return last_events({});
  }

  std::string events(std::size_t prompt, const RequestUpdate& update) override {
    if (request_.chat.params.logprobs)
      extend(new_logprobs_, chat_logprobs(std::span(update.output.logprobs).subspan(output_.tokens),
                                          token_names(request_.chat, context_.model))["content"]);
    return BlockResponse::events(prompt, update);
  }

  OrderedJson body(Outputs outputs) override {
    keep(outputs);
    answer_.update(OrderedJson::parse(request_.echo));
    return std::move(answer_);
  }

 private:
  // Both objects in one. short_echo: without what may be long.
  std::string answer_text(bool short_echo) const {
    std::string text = to_line(answer_);
    text.back() = ',';
    if (!short_echo || request_.echo.size() <= kLongEcho) return text + request_.echo.substr(1);
    OrderedJson echo = OrderedJson::parse(request_.echo);
    echo["instructions"] = nullptr;
    echo["tools"] = OrderedJson::array();
    return text + to_line(echo).substr(1);
  }

  // Of the item that is open, or that stands in the event itself.
  void emit(std::string_view type, OrderedJson fields) {
    if (!streams()) return;
    OrderedJson event = {
        {"type", type}, {"sequence_number", sequence_number_++}, {"output_index", items_.size()}};
    if (!fields.contains("item")) event["item_id"] = item_["id"];
    if (!fields.contains("item") && item_.contains("content")) event["content_index"] = 0;
    for (auto& [name, value] : fields.items()) event[name] = std::move(value);
    events_ += to_event(event, type);
  }

  void emit_answer(std::string_view type, bool short_echo = false) {
    if (!streams()) return;
    events_ +=
        format_text("event: {0}\ndata: {{\"type\":\"{0}\",\"sequence_number\":{1},\"response\":{2}}}\n\n",
                    type, sequence_number_++, answer_text(short_echo));
  }

  void open(const ToolCallDelta* call) override {
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

  void close(bool complete) override {
    if (item_.is_null()) return;
    open_ = Block::kNone;
    const bool is_call = item_["type"] == "function_call";
    const bool is_whole = complete && (!is_call || are_whole(item_["arguments"]));
    item_["status"] = is_whole ? "completed" : "incomplete";
    if (is_call) {
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

  void append(const std::string& text) override {
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

  void hide() override { new_logprobs_.clear(); }

  void begin() override {
    for (const char* type : {"response.created", "response.in_progress"}) emit_answer(type, true);
  }

  void finish(const CompletionOutput& output) override {
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
  void keep(Outputs outputs) {
    answer_["usage"] = responses_usage(usage_);
    add_timings(answer_, request_.chat, outputs, usage_);
    if (request_.store)
      context_.store.put(head_.id, context_.key, answer_text(false), std::move(request_.earlier),
                         std::move(request_.input), to_line(items_));
    answer_["output"] = std::move(items_);
  }

  ResponsesRequest request_;
  const ResponsesContext context_;
  OrderedJson answer_;                               // without what it echoes
  OrderedJson items_ = OrderedJson::array();         // that are done
  OrderedJson item_;                                 // that is not; null: none
  OrderedJson new_logprobs_ = OrderedJson::array();  // of tokens whose text has not come yet
  std::int64_t sequence_number_ = 0;
};

}  // namespace

ResponsesRequest parse_responses_request(OrderedJson body, const ResponsesContext& context) {
  ResponsesRequest request;
  Conversation conversation(context);
  const JsonFields fields(body);
  check_response_fields(fields);
  fields.integer("top_logprobs", 0, context.model.sampling.max_logprobs);
  if (const std::string* text = fields.text("instructions"); text != nullptr && !text->empty())
    conversation.add(read_item({{"role", "system"}, {"content", *text}}, "instructions"));
  if (const std::string* previous = fields.text("previous_response_id")) {
    const auto found = context.store.find(*previous, context.key);
    if (found == nullptr)
      throw ApiError(404, format_text("There is no response {}.", in_quotes(*previous)),
                     "previous_response_id", "previous_response_not_found");
    request.earlier = found->items;
    conversation.add_earlier(request.earlier);
  }
  conversation.add_input(fields.required("input"));
  erase_key(body, "input");
  if (to_line(body).size() > kMaxOtherBytes)
    throw ApiError(400, format_text("the request has more than {} bytes beside its input", kMaxOtherBytes));
  OrderedJson messages = conversation.finish(request);
  request.chat = parse_chat_request(to_chat_body(body, std::move(messages)), context.model);
  request.store = fields.boolean("store").value_or(true) && context.store.keeps();
  request.echo = echo_of(fields, request);
  if (request.store) return request;
  request.earlier.clear();
  request.input.clear();
  return request;
}

OrderedJson responses_error(const ApiError& error, const std::string& request_id) {
  return openai_error(renamed(error, kResponseNames), request_id);
}

std::unique_ptr<Response> make_responses_response(ResponseHead head, ResponsesRequest request,
                                                  const ResponsesContext& context,
                                                  const MakeParser& make_parser) {
  return std::make_unique<ResponsesResponse>(std::move(head), std::move(request), context, make_parser);
}

}  // namespace quire::server
