#include "server/responses_request.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <utility>

#include "server/api_response.h"
#include "server/response_items.h"
#include "tokenizer/unicode.h"

namespace quire::server {
namespace {

using Names = std::pair<std::string_view, std::string_view>;

constexpr std::string_view kLogprobs = "message.output_text.logprobs";

// A field of a chat, and what it is made from. The longer names come first.
constexpr Names kChatNames[] = {
    {"response_format.json_schema", "text.format"}, {"response_format", "text.format"},
    {"max_completion_tokens", "max_output_tokens"}, {"max_tokens", "max_output_tokens"},
    {"reasoning_effort", "reasoning.effort"},       {"messages", "input"}};

// The messages of a conversation's items, and these items as they are kept.
class Conversation {
 public:
  explicit Conversation(const ResponsesContext& context) : context_(context) {}

  void add_earlier(const StoredItems& items) {
    for (const auto& text : items)
      for (const OrderedJson& item : parse_text(**text, "the conversation", "previous_response_id"))
        add(read_item(item, "the conversation"));
  }

  void add_input(const OrderedJson& input) {
    if (input.is_string()) {
      add_new({.type = "message", .role = "user", .texts = {input.get<std::string>()}});
    } else {
      for (std::size_t i = 0; i < to_list(input, "input").size(); ++i) {
        const std::string place = format_text("input[{}]", i);
        ResponseItem item = read_item(input[i], place);
        add_new(item.type == "item_reference" ? find(item.id, place) : std::move(item));
      }
    }
  }

  // instructions: come first, and are no item.
  void add_instructions(const std::string& text) {
    add({.type = "message", .role = "system", .texts = {text}});
  }

  OrderedJson take_messages() { return std::move(messages_); }
  std::size_t num_new() const { return num_new_; }
  // As JSON; no more than is ever kept, and a bit.
  std::string take_input() { return std::move(input_) + "]"; }

 private:
  void add(const ResponseItem& item) {
    for (const std::string& text : item.texts) bytes_ += text.size();
    bytes_ += item.arguments.size();
    if (bytes_ > ResponseStore::kMaxConversationBytes)
      refuse("input", "the conversation has more than {} bytes", ResponseStore::kMaxConversationBytes);
    add_to_chat(item, messages_);
  }

  void add_new(ResponseItem item) {
    add(item);
    const std::size_t index = num_new_++;
    if (input_.size() > ResponseStore::kMaxConversationBytes) return;
    if (item.id.empty()) item.id = item_id(item.type, context_.id, index);
    input_ += (index == 0 ? "" : ",") + to_line(item_json(item));
  }

  // An item of a response that is kept.
  const ResponseItem& find(const std::string& id, const std::string& place) {
    const std::string response = response_of_item(id);
    if (known_.insert(response).second) {
      if (const auto kept = context_.store.find(response, context_.key)) {
        for (const auto& text : {kept->items.end()[-2], kept->items.end()[-1]})
          for (const OrderedJson& item : parse_text(**text, "the conversation", "input"))
            found_.emplace(item["id"].get<std::string>(), read_item(item, place));
      }
    }
    const auto found = found_.find(id);
    if (found == found_.end())
      throw ApiError(404, format_text("{}: there is no item {}", place, in_quotes(id)), "input");
    return found->second;
  }

  const ResponsesContext& context_;
  OrderedJson messages_ = OrderedJson::array();
  std::string input_ = "[";
  std::size_t num_new_ = 0;
  std::size_t bytes_ = 0;        // of all texts
  std::set<std::string> known_;  // responses whose items were looked at
  std::unordered_map<std::string, ResponseItem> found_;
};

void refuse_unknown(const JsonFields& fields) {
  refuse_unsupported(fields, {"background", "conversation", "prompt", "max_tool_calls", "context_management",
                              "moderation", "response_format", "prompt_logprobs", "return_token_ids"});
  check_value(fields, "truncation", {"disabled"});
  fields.integer("n", 1, 1);
  constexpr std::array<std::string_view, 2> kIncluded = {kLogprobs, "reasoning.encrypted_content"};
  if (const OrderedJson* include = fields.find("include"))
    for (std::size_t i = 0; i < to_list(*include, "include").size(); ++i)
      to_choice((*include)[i], format_text("include[{}]", i), kIncluded);
}

// As OpenAI bounds it.
void check_metadata(const JsonFields& fields) {
  constexpr std::ptrdiff_t kMostPairs = 16;
  constexpr std::ptrdiff_t kMostOfKey = 64;
  constexpr std::ptrdiff_t kMostOfValue = 512;
  const auto characters = [](const std::string& text) {
    return std::ssize(text) - std::count_if(text.begin(), text.end(), is_continuation);
  };
  const OrderedJson* metadata = fields.find("metadata");
  if (metadata == nullptr) return;
  if (std::ssize(to_object(*metadata, "metadata")) > kMostPairs)
    refuse("metadata", "metadata has {} pairs; it may have {}", metadata->size(), kMostPairs);
  for (const auto& [name, value] : metadata->items()) {
    const std::string place = format_text("metadata.{}", in_quotes(name));
    if (characters(name) > kMostOfKey)
      refuse("metadata", "{}: a key may have {} characters", place, kMostOfKey);
    if (characters(to_text(value, place)) > kMostOfValue)
      refuse("metadata", "{}: a value may have {} characters", place, kMostOfValue);
  }
}

OrderedJson to_chat_tool(const OrderedJson& value, const std::string& place) {
  const JsonFields tool(value, place);
  constexpr std::array<std::string_view, 1> kTypes = {"function"};
  to_choice(tool.required("type"), tool.place_of("type"), kTypes);
  OrderedJson function = OrderedJson::object();
  for (const char* name : {"name", "description", "parameters", "strict"})
    if (const OrderedJson* field = tool.find(name)) function[name] = *field;
  return {{"type", "function"}, {"function", std::move(function)}};
}

// {type: function, name} as a chat has it.
OrderedJson to_chat_choice(const OrderedJson& value, const std::string& place) {
  const JsonFields choice(value, place);
  constexpr std::array<std::string_view, 1> kTypes = {"function"};
  to_choice(choice.required("type"), choice.place_of("type"), kTypes);
  return {{"type", "function"},
          {"function", {{"name", to_text(choice.required("name"), choice.place_of("name"))}}}};
}

// Leaves the tools that may be called; what is to be chosen of them.
OrderedJson allow_tools(const JsonFields& choice, OrderedJson& tools) {
  constexpr std::array<std::string_view, 2> kModes = {"auto", "required"};
  const std::string mode = to_choice(choice.required("mode"), choice.place_of("mode"), kModes);
  const std::string place = choice.place_of("tools");
  const OrderedJson& named = to_list(choice.required("tools"), place);
  OrderedJson allowed = OrderedJson::array();
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::string here = format_text("{}[{}]", place, i);
    const OrderedJson name = to_chat_choice(named[i], here)["function"]["name"];
    const auto found = std::find_if(tools.begin(), tools.end(), [&](const OrderedJson& tool) {
      return tool["function"].value("name", OrderedJson()) == name;
    });
    if (found == tools.end())
      refuse("tool_choice", "{} names {}, which is none of the tools", here, shown(name));
    allowed.push_back(*found);
  }
  tools = std::move(allowed);
  return mode;
}

void translate_tools(const JsonFields& fields, OrderedJson& chat) {
  OrderedJson tools = OrderedJson::array();
  if (const OrderedJson* given = fields.find("tools"))
    for (std::size_t i = 0; i < to_list(*given, "tools").size(); ++i)
      tools.push_back(to_chat_tool((*given)[i], format_text("tools[{}]", i)));
  if (const OrderedJson* choice = fields.find("tool_choice"); choice != nullptr && choice->is_object()) {
    const JsonFields object(*choice, "tool_choice");
    const std::string* type = object.text("type");
    const bool several = type != nullptr && *type == "allowed_tools";
    chat["tool_choice"] = several ? allow_tools(object, tools) : to_chat_choice(*choice, "tool_choice");
  }
  chat["tools"] = std::move(tools);
}

void translate_text(const JsonFields& fields, OrderedJson& chat) {
  const auto text = fields.object("text");
  if (!text) return;
  constexpr std::array<std::string_view, 3> kVerbosities = {"low", "medium", "high"};
  text->get("verbosity", to_choice, kVerbosities);
  const auto format = text->object("format");
  if (!format) return;
  OrderedJson flat = *text->find("format");
  if (to_text(format->required("type"), format->place_of("type")) == "json_schema") {
    flat.erase("type");
    flat = {{"type", "json_schema"}, {"json_schema", std::move(flat)}};
  }
  chat["response_format"] = std::move(flat);
}

void translate_reasoning(const JsonFields& fields, OrderedJson& chat) {
  const auto reasoning = fields.object("reasoning");
  if (!reasoning) return;
  constexpr std::array<std::string_view, 3> kSummaries = {"auto", "concise", "detailed"};
  for (const char* name : {"summary", "generate_summary"}) reasoning->get(name, to_choice, kSummaries);
  if (const OrderedJson* effort = reasoning->find("effort")) chat["reasoning_effort"] = *effort;
}

// Whose fields are the rest of the body, as its sampling parameters are the same.
OrderedJson to_chat_body(OrderedJson body, const ServedModel& model, OrderedJson messages) {
  OrderedJson chat;
  const JsonFields fields(body);
  translate_tools(fields, chat);
  translate_text(fields, chat);
  translate_reasoning(fields, chat);
  const OrderedJson* include = fields.find("include");
  chat["logprobs"] =
      include != nullptr && std::find(include->begin(), include->end(), kLogprobs) != include->end();
  fields.integer("top_logprobs", 0, model.sampling.max_logprobs);
  if (!chat["logprobs"].get<bool>()) chat["top_logprobs"] = nullptr;
  chat["max_tokens"] = nullptr;
  chat["max_completion_tokens"] =
      fields.find("max_output_tokens") != nullptr ? body["max_output_tokens"] : nullptr;
  chat["messages"] = std::move(messages);
  for (auto& [name, value] : chat.items()) body[name] = std::move(value);
  return body;
}

// The shortest number that is this one.
OrderedJson number_json(float value) { return std::stod(format_text("{}", value)); }

OrderedJson echo_of(const JsonFields& fields, const ResponsesRequest& request) {
  const auto given = [&](const char* name, OrderedJson otherwise = nullptr) {
    const OrderedJson* value = fields.find(name);
    return value == nullptr ? std::move(otherwise) : *value;
  };
  for (const char* name : {"user", "safety_identifier", "prompt_cache_key", "service_tier"})
    fields.text(name);
  OrderedJson text = {{"format", {{"type", "text"}}}};
  if (const auto asked = fields.object("text"))
    for (const char* name : {"format", "verbosity"})
      if (const OrderedJson* value = asked->find(name)) text[name] = *value;
  OrderedJson reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  if (const auto asked = fields.object("reasoning"))
    for (const char* name : {"effort", "summary"})
      if (const OrderedJson* value = asked->find(name)) reasoning[name] = *value;
  return {{"background", false},
          {"instructions", given("instructions")},
          {"max_output_tokens", given("max_output_tokens")},
          {"max_tool_calls", nullptr},
          {"metadata", given("metadata", OrderedJson::object())},
          {"parallel_tool_calls", !request.chat.one_tool_call},
          {"previous_response_id", given("previous_response_id")},
          {"prompt_cache_key", given("prompt_cache_key")},
          {"reasoning", std::move(reasoning)},
          {"safety_identifier", given("safety_identifier")},
          {"service_tier", "default"},
          {"store", request.store},
          {"temperature", number_json(request.chat.params.temperature)},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", OrderedJson::array())},
          {"top_logprobs", given("top_logprobs", 0)},
          {"top_p", number_json(request.chat.params.top_p)},
          {"truncation", "disabled"},
          {"user", given("user")}};
}

}  // namespace

ResponsesRequest parse_responses_request(OrderedJson body, const ResponsesContext& context) {
  ResponsesRequest request;
  Conversation conversation(context);
  const JsonFields fields(body);
  refuse_unknown(fields);
  check_metadata(fields);
  request.store = fields.boolean("store").value_or(true) && context.store.keeps();
  if (const std::string* text = fields.text("instructions"); text != nullptr && !text->empty())
    conversation.add_instructions(*text);
  if (const std::string* previous = fields.text("previous_response_id")) {
    const auto found = context.store.find(*previous, context.key);
    if (found == nullptr)
      throw ApiError(404, format_text("There is no response {}.", in_quotes(*previous)),
                     "previous_response_id", "previous_response_not_found");
    request.earlier = found->items;
    conversation.add_earlier(request.earlier);
  }
  conversation.add_input(fields.required("input"));
  request.num_items = conversation.num_new();
  if (request.store) request.input = conversation.take_input();
  if (!request.store) request.earlier.clear();
  body.erase("input");
  OrderedJson messages = conversation.take_messages();
  request.chat = parse_chat_request(to_chat_body(body, context.model, std::move(messages)), context.model,
                                    context.format);
  request.echo = echo_of(fields, request);
  return request;
}

ApiError responses_error(const ApiError& error) {
  std::string param = error.param;
  std::string message = error.what();
  const auto rename = [&](std::string_view from, std::string_view to, std::size_t at) {
    param.replace(at, from.size(), to);
    if (const std::size_t found = message.find(from); found != std::string::npos)
      message.replace(found, from.size(), to);
  };
  for (const auto& [from, to] : kChatNames) {
    const bool is_it = param.starts_with(from) && (param.size() == from.size() || param[from.size()] == '.' ||
                                                   param[from.size()] == '[');
    if (!is_it) continue;
    rename(from, to, 0);
    break;
  }
  constexpr std::string_view kFunction = ".function.";
  const std::size_t nested = param.find(kFunction);
  if (param.starts_with("tools[") && nested != std::string::npos) rename(kFunction, ".", nested);
  return {error.status, message, param, error.code};
}

OrderedJson responses_error_body(const ApiError& error, const std::string& request_id) {
  return openai_error(responses_error(error), request_id);
}

}  // namespace quire::server
