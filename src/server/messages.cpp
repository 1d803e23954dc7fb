#include "server/messages.h"

#include <memory>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "server/api_error.h"

namespace quire::server {
namespace {

constexpr int kMostBudgetTokens = 1 << 30;

// A text that must be there and say something.
const std::string& required_name(const JsonFields& fields, std::string_view field) {
  const std::string& name = fields.required_text(field);
  if (name.empty()) refuse(fields.place_of(field), "is empty");
  return name;
}

// The messages of a chat, as they come out of a conversation's content blocks.
struct ChatBuilder {
  // content: a text, or blocks. role: user, assistant, system, or tool, whose message there is.
  void add(std::string_view role, const OrderedJson& content, const std::string& place) {
    if (content.is_string()) return add_text(role, content.get_ref<const std::string&>());
    if (!content.is_array()) refuse(place, "is {}; it must be a string or a list of blocks", shown(content));
    for (const JsonFields& block : to_objects(content, place)) add_block(role, block);
  }

  std::unordered_map<std::string, OrderedJson> deferred;  // tools by name, that no message has referred to
  OrderedJson loaded;                                     // the other deferred ones
  OrderedJson messages = OrderedJson::array();

 private:
  // The last message if it is this role's, or a new one.
  OrderedJson& turn(std::string_view role) {
    if (messages.empty() || messages.back()["role"] != role) messages.push_back({{"role", role}});
    return messages.back();
  }

  void add_text(std::string_view role, const std::string& text) {
    // Claude Code's first block of the system prompt. It differs in each request: no prefix would be cached.
    constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";
    if (role == "system") {
      if (text.empty() || text.starts_with(kBillingHeader)) return;
      if (!messages.empty() && messages.back()["role"] != "system")
        role = messages.back()["role"] == "tool" ? "tool" : "user";
    }
    OrderedJson& content = turn(role)["content"];
    if (role == "assistant") return append_text(content, text);
    content.push_back({{"type", "text"}, {"text", text}});
  }

  void add_block(std::string_view role, const JsonFields& block) {
    const std::string place = block.place_of("type");
    const std::string& type = block.required_text("type");
    if (type == "text") return add_text(role, block.required_text("text"));
    std::string_view known = "text";
    if (role == "user") {
      if (type == "tool_result") return add_result(block);
      known = "text or tool_result";
    } else if (role == "tool") {
      if (type == "tool_reference") return add_reference(required_name(block, "tool_name"));
      known = "text or tool_reference";
    } else if (role == "assistant") {
      if (type == "thinking") return append_text(turn(role)["reasoning"], block.required_text(type));
      if (type == "redacted_thinking") return;  // nobody here can read it
      if (type == "tool_use") return add_call(block);
      known = "text, thinking, redacted_thinking or tool_use";
    }
    refuse(place, "is {}; here this model takes {}", in_quotes(type), known);
  }

  void add_call(const JsonFields& block) {
    const std::string& id = required_name(block, "id");
    const std::string& name = required_name(block, "name");
    tool_names_[id] = name;
    const OrderedJson& input = block.required("input", to_object);
    turn("assistant")["tool_calls"].push_back(function_tool({{"name", name}, {"arguments", input}}, id));
  }

  void add_result(const JsonFields& block) {
    const std::string& id = required_name(block, "tool_use_id");
    messages.push_back({{"role", "tool"}, {"tool_call_id", id}});
    if (const auto name = tool_names_.find(id); name != tool_names_.end())
      messages.back()["name"] = name->second;
    if (block.boolean("is_error").value_or(false)) add_text("tool", "Error:");
    if (const OrderedJson* content = block.find("content")) add("tool", *content, block.place_of("content"));
  }

  // Where a deferred tool is found, it is defined: the prompt before stays as it is, and cached.
  void add_reference(const std::string& name) {
    const auto tool = deferred.find(name);
    if (tool == deferred.end()) return add_text("tool", name);
    add_text("tool", "<function>" + tool->second["function"].dump() + "</function>");
    loaded.push_back(std::move(tool->second));
    deferred.erase(tool);
  }

  std::unordered_map<std::string, std::string> tool_names_;  // by the id of the call
};

// The chat's tools; those that are not to stand in the prompt go to the builder.
void read_message_tools(const JsonFields& fields, OrderedJson& chat, ChatBuilder& builder) {
  if (fields.find("tools") != nullptr) chat["tools"] = OrderedJson::array();
  for (const JsonFields& tool : fields.objects("tools")) {
    if (const auto type = tool.get("type", to_text).value_or("custom"); type != "custom")
      refuse(tool.place_of("type"), "is {}; this server has no tools of its own, only custom ones",
             in_quotes(type));
    const std::string& name = required_name(tool, "name");
    OrderedJson function = {{"name", name}};
    if (const std::string* description = tool.text("description")) function["description"] = *description;
    function["parameters"] = tool.required("input_schema", to_object);
    if (const auto strict = tool.boolean("strict")) function["strict"] = *strict;
    const bool is_deferred = tool.boolean("defer_loading").value_or(false);
    (is_deferred ? builder.deferred[name] : chat["tools"].emplace_back(nullptr)) =
        function_tool(std::move(function));
  }
}

void read_conversation(const JsonFields& fields, OrderedJson& chat, ChatBuilder& builder) {
  const auto messages = fields.required("messages", to_objects);
  if (messages.empty()) refuse("messages", "is empty; at least one message is needed");
  if (const OrderedJson* system = fields.find("system")) builder.add("system", *system, "system");
  for (const JsonFields& message : messages) {
    const std::string& role = message.required_choice("role", {"user", "assistant", "system"});
    builder.add(role, message.required("content"), message.place_of("content"));
  }
  const OrderedJson& made = chat["messages"] = std::move(builder.messages);
  if (made.empty() || made.back()["role"] != "assistant") return;
  if (made.back().contains("tool_calls"))
    refuse("messages", "ends with a tool_use; its tool_result must follow");
  if (made.back().value("content", "").find_first_not_of(kWhiteSpace) == std::string::npos)
    refuse("messages", "ends with an assistant's message that has no text to be continued");
  chat["continue_final_message"] = true;
}

void read_tool_choice(const JsonFields& fields, OrderedJson& chat) {
  const auto choice = fields.object("tool_choice");
  if (!choice) return;
  const std::string& type = choice->required_choice("type", {"auto", "any", "tool", "none"});
  const bool has_to_call = type == "any" || type == "tool";
  if (has_to_call && !fields.asks("tools")) refuse("tool_choice", "{} needs tools", in_quotes(type));
  chat["tool_choice"] = type == "any" ? "required" : type;
  if (type == "tool") chat["tool_choice"] = function_tool({{"name", required_name(*choice, "name")}});
  if (const auto one = choice->boolean("disable_parallel_tool_use")) chat["parallel_tool_calls"] = !*one;
}

// For the template, by the names that templates have for it, unless the request says more.
void read_thinking(const JsonFields& fields, bool reasons, OrderedJson& chat) {
  const auto thinking = fields.object("thinking");
  if (!thinking) return;
  const std::string& type = thinking->required_choice("type", {"enabled", "disabled", "adaptive"});
  auto variables = fields.get("chat_template_kwargs", to_object).value_or(OrderedJson::object());
  for (const char* name : {"enable_thinking", "thinking"})
    if (!variables.contains(name)) variables[name] = type != "disabled";
  chat["chat_template_kwargs"] = std::move(variables);
  if (type == "enabled") {
    const auto budget = thinking->required("budget_tokens", to_integer, 0, kMostBudgetTokens);
    fields.integer("thinking_token_budget", 0, kLargestInt);  // or it is refused
    if (reasons) chat["thinking_token_budget"] = budget;
  }
  if (thinking->get("display", to_text) != "omitted") return;
  chat["include_reasoning"] = false;
  fields.boolean("include_reasoning");  // as above
}

std::shared_ptr<const StructuredOutputs> read_output_config(const JsonFields& fields, OrderedJson& chat) {
  const auto config = fields.object("output_config");
  if (config && config->find("effort")) {
    chat["reasoning_effort"] = config->required_choice("effort", {"low", "medium", "high", "xhigh", "max"});
    read_reasoning_effort(fields);  // or it is refused
  }
  const auto older = fields.object("output_format");
  const auto newer = config ? config->object("format") : std::nullopt;
  if (older && newer) refuse("output_format", "and output_config.format exclude each other");
  const auto& format = newer ? newer : older;
  if (!format) return nullptr;
  format->required_choice("type", {"json_schema"});
  auto outputs = std::make_shared<StructuredOutputs>();
  outputs->kind = StructuredOutputs::Kind::kJsonSchema;
  outputs->name = format->place_of("schema");
  outputs->source = format->required("schema", to_object).dump();
  return outputs;
}

// Claude Code asks for an edit that edits nothing.
void check_context_management(const JsonFields& fields) {
  const auto management = fields.object("context_management");
  if (!management) return;
  for (const JsonFields& edit : management->objects("edits")) {
    const std::string& type = edit.required_text("type");
    const OrderedJson* keep = edit.find("keep");
    if (type != "clear_thinking_20251015" || keep == nullptr || *keep != "all")
      refuse(edit.place_of("type"), "is {}, which is not supported; clear_thinking_20251015 may keep all",
             in_quotes(type));
  }
}

void check_fields(const JsonFields& fields) {
  refuse_unsupported(fields, {"container", "mcp_servers", "compaction", "thread"});
  // Of chats: this API has other fields for them, or its answers have no place.
  refuse_unsupported(fields, {"stop", "max_completion_tokens", "response_format", "parallel_tool_calls",
                              "continue_final_message", "add_generation_prompt", "stream_options", "timings",
                              "n", "best_of", "use_beam_search", "logprobs", "top_logprobs",
                              "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"});
  fields.choice("service_tier", {"auto", "standard_only"});
  fields.choice("speed", {"standard"});
  check_context_management(fields);
  fields.object("metadata");
}

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

// Fields of this API, and those of a chat; a chat's that a client has sent are not supported.
constexpr FieldName kMessageNames[] = {{"stop_sequences", "stop(?! is not supported)"},
                                       {"messages", "continue_final_message(?! is not supported)"},
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

class MessagesResponse final : public BlockResponse {
 public:
  MessagesResponse(ResponseHead head, const ChatRequest& request, std::string request_id,
                   const MakeParser& make_parser)
      : BlockResponse(std::move(head), request, true, make_parser),
        include_reasoning_(request.include_reasoning),
        request_id_(std::move(request_id)) {}

  std::string last_events(Outputs) override {
    send("message_delta", {{"delta", {{"stop_reason", stop_reason_}, {"stop_sequence", stop_sequence_}}},
                           {"usage", message_usage(usage_)}});
    send("message_stop", OrderedJson::object());
    return std::exchange(events_, {});
  }

  std::string failure_events(const ApiError& error) override {
    return to_event(anthropic_error(error, request_id_), "error");
  }

  OrderedJson body(Outputs) override {
    return {{"id", head_.id},
            {"type", "message"},
            {"role", "assistant"},
            {"model", head_.model},
            {"content", content_},
            {"stop_reason", stop_reason_},
            {"stop_sequence", stop_sequence_},
            {"usage", message_usage(usage_)}};
  }

 private:
  void send(const char* name, OrderedJson fields) {
    if (!streams()) return;
    OrderedJson event = {{"type", name}};
    event.update(fields);
    events_ += to_event(event, name);
  }

  void send_delta(const char* type, const char* field, const std::string& text) {
    send("content_block_delta", {{"index", content_.size() - 1}, {"delta", {{"type", type}, {field, text}}}});
  }

  // Of no output yet, the whole answer is its frame.
  void begin() override { send("message_start", {{"message", body({})}}); }

  void open(const ToolCallDelta* call) override {
    OrderedJson made = {{"type", "text"}, {"text", ""}};
    if (open_ == Block::kReasoning) made = {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}};
    if (open_ == Block::kCall)
      made = {{"type", "tool_use"}, {"id", call->id}, {"name", call->name}, {"input", OrderedJson::object()}};
    send("content_block_start", {{"index", content_.size()}, {"content_block", made}});
    content_.push_back(std::move(made));
  }

  void append(const std::string& text) override {
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

  void close(bool) override {
    const Block ended = std::exchange(open_, Block::kNone);
    if (ended == Block::kReasoning) {
      content_.back()["signature"] = head_.id;
      send_delta("signature_delta", "signature", head_.id);
    }
    if (ended == Block::kCall) content_.back()["input"] = to_input(std::exchange(arguments_, {}));
    send("content_block_stop", {{"index", content_.size() - 1}});
  }

  // An answer always has a block, which clients look for. What the server cut short ends as if by its length.
  void finish(const CompletionOutput& output) override {
    if (content_.empty()) change(Block::kText);
    if (open_ != Block::kNone) close(true);
    stop_reason_ = output_.has_calls ? "tool_use" : "end_turn";
    if (output.finish_reason != FinishReason::kStop) stop_reason_ = "max_tokens";
    if (const auto* text = std::get_if<std::string>(&output.stop_reason)) {
      stop_reason_ = "stop_sequence";
      stop_sequence_ = *text;
    }
  }

  const bool include_reasoning_;
  const std::string request_id_;
  OrderedJson content_ = OrderedJson::array();
  std::string arguments_;                    // of the open call
  OrderedJson stop_reason_, stop_sequence_;  // null before the end
};

}  // namespace

ChatRequest parse_messages_request(OrderedJson body, const ServedModel& model, bool only_counts) {
  const JsonFields fields(body);
  check_fields(fields);
  if (!only_counts) fields.required("max_tokens");
  OrderedJson chat;
  ChatBuilder builder;
  read_message_tools(fields, chat, builder);
  read_conversation(fields, chat, builder);
  for (const OrderedJson& tool : builder.loaded) chat["tools"].push_back(tool);
  read_tool_choice(fields, chat);
  read_thinking(fields, model.reasons, chat);
  if (const auto stops = fields.get("stop_sequences", to_texts)) chat["stop"] = *stops;
  const auto outputs = read_output_config(fields, chat);
  for (auto& [name, value] : chat.items()) body[name] = std::move(value);  // the others have chats' names
  ChatRequest request = parse_chat_request(body, model);
  if (!builder.loaded.empty()) {  // messages have their definitions
    OrderedJson& tools = request.context["tools"];
    tools.erase(tools.end() - std::ssize(builder.loaded), tools.end());
    if (tools.empty()) erase_key(request.context, "tools");
    request.late_tools = std::move(builder.loaded);
  }
  if (outputs) {
    if (const auto& other = request.params.structured_outputs)
      refuse(outputs->name, "and {} exclude each other", other->name);
    request.params.structured_outputs = outputs;
  }
  return request;
}

OrderedJson anthropic_error(const ApiError& error, const std::string& request_id) {
  return {
      {"type", "error"},
      {"error",
       {{"type", anthropic_type(error.status)},
        {"message", error.overrun ? overrun_message(*error.overrun) : renamed(error, kMessageNames).what()}}},
      {"request_id", request_id}};
}

std::unique_ptr<Response> make_messages_response(ResponseHead head, const ChatRequest& request,
                                                 std::string request_id, const MakeParser& make_parser) {
  return std::make_unique<MessagesResponse>(std::move(head), request, std::move(request_id), make_parser);
}

}  // namespace quire::server
