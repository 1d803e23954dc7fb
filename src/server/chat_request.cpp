#include "server/chat_request.h"

#include <algorithm>

#include "server/api_error.h"

namespace quire::server {
namespace {

// The text of one part of a content.
const std::string& part_text(const OrderedJson& part, const std::string& place) {
  if (part.is_string()) return part.get_ref<const std::string&>();
  const JsonFields fields(part, place);
  const std::string* type = fields.text("type");
  const bool is_text = type == nullptr || *type == "text" || *type == "input_text" || *type == "output_text";
  if (!is_text && *type != "refusal")
    refuse(fields.place_of("type"), "is {}; this model takes text alone", in_quotes(*type));
  return fields.required_text(is_text ? "text" : "refusal");
}

OrderedJson to_content(const std::vector<std::string>& texts, ContentFormat format) {
  if (format == ContentFormat::kText) return join_text(texts, "\n");
  OrderedJson parts = OrderedJson::array();
  for (const std::string& text : texts) parts.push_back({{"type", "text"}, {"text", text}});
  return parts;
}

// As they came, but for the arguments.
OrderedJson read_tool_calls(const OrderedJson& calls, const std::string& place) {
  OrderedJson read = OrderedJson::array();
  for (const JsonFields& call : to_objects(calls, place)) {
    const JsonFields function = call.required_object("function");
    if (function.get("name", to_text).value_or("").empty()) refuse(function.place(), "has no name");
    read.push_back(call.object());
    read.back()["function"]["arguments"] =
        read_arguments(function.find("arguments"), function.place_of("arguments"));
  }
  return read;
}

// The text of a template message, in either format; of several parts, the last.
std::string text_of(const OrderedJson& template_message) {
  const OrderedJson& content = template_message["content"];
  if (content.is_string()) return content.get<std::string>();
  return content.empty() ? "" : content.back()["text"].get<std::string>();
}

OrderedJson read_message(const JsonFields& fields, ContentFormat format) {
  if (fields.asks("function_call"))
    refuse(fields.place_of("function_call"), "is not supported; use tool_calls");
  OrderedJson message;
  message["role"] = fields.required_text("role");  // any: which ones there are is the template's to say
  if (message["role"] == "developer") message["role"] = "system";  // templates know the older name
  message["content"] =
      to_content(fields.get("content", read_texts).value_or(std::vector<std::string>()), format);
  for (const char* name : {"name", "tool_call_id"})
    if (const std::string* text = fields.text(name)) message[name] = *text;
  const std::string* reasoning = fields.text("reasoning");
  if (reasoning == nullptr) reasoning = fields.text("reasoning_content");
  if (reasoning != nullptr && !reasoning->empty())
    for (const char* name : {"reasoning", "reasoning_content"}) message[name] = *reasoning;
  if (const OrderedJson* calls = fields.find("tool_calls"); calls != nullptr && !calls->empty())
    message["tool_calls"] = read_tool_calls(*calls, fields.place_of("tool_calls"));
  // gpt-oss's template has a name of its own, and refuses a text beside it.
  if (message.contains("reasoning") && message.contains("tool_calls") && text_of(message).empty())
    message["thinking"] = *reasoning;
  return message;
}

// The messages of a request as chat templates read them: content in one format, "" or [] where there is none;
// arguments of tool calls as objects; reasoning under both of its names, and as thinking where calls follow
// it; the developer as system. ApiError for what is no message, and for content that is no text.
OrderedJson to_template_messages(const OrderedJson& messages, ContentFormat format) {
  OrderedJson read = OrderedJson::array();
  if (to_list(messages, "messages").empty()) refuse("messages", "is empty; at least one message is needed");
  for (const JsonFields& message : to_objects(messages, "messages"))
    read.push_back(read_message(message, format));
  return read;
}

// Whether it is strict.
bool check_tool(const JsonFields& tool) {
  if (tool.get("type", to_text) != "function") refuse(tool.place_of("type"), "must be \"function\"");
  const JsonFields function = tool.required_object("function");
  if (function.get("name", to_text).value_or("").empty())
    refuse(function.place_of("name"), "is missing or empty");
  function.text("description");
  function.object("parameters");
  return function.boolean("strict").value_or(false);
}

// {"type": "function", "function": {"name": ...}}
std::string read_named_choice(const JsonFields& choice, const OrderedJson* tools) {
  const auto function = choice.object("function");
  const std::string* name = function ? function->text("name") : nullptr;
  if (choice.get("type", to_text) != "function" || name == nullptr)
    refuse("tool_choice",
           "is none, auto, required, or names a function: {{\"type\": \"function\", \"function\": "
           "{{\"name\": \"...\"}}}}");
  const auto is_it = [&](const OrderedJson& tool) { return tool.at("function").at("name") == *name; };
  if (tools == nullptr || std::ranges::none_of(*tools, is_it))
    refuse("tool_choice", "names {}, which is none of the tools", in_quotes(*name));
  return *name;
}

// They go to the template as they came.
void read_tools(const JsonFields& fields, ChatRequest& request) {
  const OrderedJson* tools = fields.find("tools");
  for (const JsonFields& tool : fields.objects("tools"))
    if (check_tool(tool)) request.strict_tools = true;
  const bool has_tools = tools != nullptr && !tools->empty();
  if (has_tools) request.context["tools"] = *tools;
  request.one_tool_call = !fields.boolean("parallel_tool_calls").value_or(true);
  request.parse_tools = has_tools;
  const OrderedJson* choice = fields.find("tool_choice");
  if (choice == nullptr) return;
  if (choice->is_object()) {
    request.only_tool = read_named_choice(JsonFields(*choice, "tool_choice"), tools);
    request.require_call = true;
    return;
  }
  const std::string& name = fields.required_choice("tool_choice", {"none", "auto", "required"});
  request.require_call = name == "required";
  if (request.require_call && !has_tools) refuse("tool_choice", "\"required\" needs tools");
  request.parse_tools = has_tools && name != "none";
}

void read_template_variables(const JsonFields& fields, const ServedModel& model, OrderedJson& context) {
  context = model.answers.chat_template_kwargs;
  if (fields.get("documents", to_objects)) context["documents"] = fields.required("documents");
  if (const auto effort = read_reasoning_effort(fields)) {
    context["reasoning_effort"] = *effort;
    if (*effort == "none") context["enable_thinking"] = false;
  }
  const OrderedJson* variables = fields.find("chat_template_kwargs");
  if (variables == nullptr) return;
  check_template_variables(*variables, "chat_template_kwargs");
  context.update(*variables);
}

void read_end_of_prompt(const JsonFields& fields, ChatRequest& request) {
  const auto add_prompt = fields.boolean("add_generation_prompt");
  const bool continues = fields.boolean("continue_final_message").value_or(false);
  if (continues && add_prompt.value_or(false))
    refuse("continue_final_message", "and add_generation_prompt exclude each other");
  request.context["add_generation_prompt"] = add_prompt.value_or(!continues);
  const OrderedJson& last = request.context["messages"].back();
  const bool is_one_message = !add_prompt.value_or(!continues) || last.at("role") == "assistant";
  if (fields.boolean("echo").value_or(false) && is_one_message)
    request.echoed = join_text(read_texts(last["content"], "messages"), "\n");
  if (!continues) return;
  request.final_text = text_of(last);
  if (request.final_text->find_first_not_of(kWhiteSpace) == std::string::npos)
    refuse("continue_final_message", "needs a last message with text");
}

void read_logprobs(const JsonFields& fields, const ServedModel& model, SamplingParams& params) {
  const bool wanted = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", -1, model.sampling.max_logprobs);
  if (top == -1 && model.sampling.max_logprobs < model.sampling.vocab_size)
    refuse("top_logprobs", "is -1, the whole vocabulary; this server reports {} tokens at most",
           model.sampling.max_logprobs);
  if (!wanted && top.value_or(0) != 0) refuse("top_logprobs", "needs logprobs: true");
  if (wanted) params.logprobs = static_cast<int>(top.value_or(0));
}

void read_max_tokens(const JsonFields& fields, const ServedModel& model, ChatRequest& request) {
  for (const char* name : {"max_tokens", "max_completion_tokens"})  // the newer one holds
    fields.read(name, request.max_tokens, to_integer, 1, kLargestInt);
  // What it will be at most, where it depends on the prompt.
  request.params.max_tokens = request.max_tokens.value_or(model.max_model_len);
}

// What the template said, without the path of its file.
std::string without_path(std::string_view message) {
  const std::size_t line = message.find(", line ");
  const std::string_view where = message.substr(0, line);
  const bool has_path =
      line != std::string_view::npos && (where.find("chat_template") != std::string_view::npos ||
                                         where.find(".jinja") != std::string_view::npos);
  return has_path ? format_text("the chat template{}", message.substr(line)) : std::string(message);
}

}  // namespace

std::vector<std::string> read_texts(const OrderedJson& content, const std::string& place) {
  if (content.is_string()) return {content.get<std::string>()};
  if (!content.is_array())
    refuse(place, "is {}; it must be a string, a list of parts or null", shown(content));
  return to_each(content, place, part_text);
}

OrderedJson read_arguments(const OrderedJson* arguments, const std::string& place) {
  if (arguments == nullptr) return OrderedJson::object();
  if (!arguments->is_string()) return to_object(*arguments, place);
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.empty()) return OrderedJson::object();
  return to_object(parse_text(text, place, place), place);
}

OrderedJson function_tool(OrderedJson function, const std::string& id) {
  OrderedJson tool;
  if (!id.empty()) tool["id"] = id;
  tool["type"] = "function";
  tool["function"] = std::move(function);
  return tool;
}

std::optional<std::string> read_reasoning_effort(const JsonFields& fields) {
  return fields.choice("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh", "max"});
}

void append_text(OrderedJson& to, const std::string& text) {
  if (to.is_null()) to = "";
  to.get_ref<std::string&>() += text;
}

void check_template_variables(const OrderedJson& variables, const std::string& place) {
  for (const auto& [name, value] : to_object(variables, place).items()) {
    // Strings of that name are trusted: what they hold would become special tokens.
    if (name.ends_with("_token"))
      refuse(place, "has {}; names that end in _token are the model's", in_quotes(name));
    const auto reserved = {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"};
    if (std::ranges::find(reserved, name) != reserved.end())
      refuse(place, "has {}, which is a field of its own", in_quotes(name));
  }
}

ChatRequest parse_chat_request(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  ChatRequest request;
  request.add_special_tokens = false;  // the template has them
  read_common(fields, model, request);
  refuse_unsupported(fields, {"chat_template", "functions", "function_call", "audio", "web_search_options",
                              "return_prompt_text"});
  for (const std::string& modality : fields.get("modalities", to_texts).value_or(std::vector<std::string>()))
    if (modality != "text") refuse("modalities", "has {}; this model answers in text", in_quotes(modality));
  read_max_tokens(fields, model, request);
  read_logprobs(fields, model, request.params);
  check_sampling(request.params, model);
  const OrderedJson& messages = fields.required("messages");
  read_template_variables(fields, model, request.context);
  request.context["messages"] = to_template_messages(messages, model.content_format);
  read_tools(fields, request);
  read_end_of_prompt(fields, request);
  fields.read("include_reasoning", request.include_reasoning);
  fields.read("thinking_token_budget", request.thinking_token_budget, to_integer, 0, kLargestInt);
  return request;
}

ContentFormat content_format(const CheckpointChatTemplate& chat_template) {
  constexpr std::string_view kNeedle = "needle";
  const auto shows = [&](const OrderedJson& content) {
    OrderedJson context;
    context["messages"] = OrderedJson::array({{{"role", "user"}, {"content", content}}});
    context["add_generation_prompt"] = false;
    try {
      return join_pieces(chat_template.render(std::move(context), {})).find(kNeedle) != std::string::npos;
    } catch (const Error&) {
      return false;
    }
  };
  const OrderedJson part = {{"type", "text"}, {"text", kNeedle}};
  const bool parts_only = !shows(kNeedle) && shows(OrderedJson::array({part}));
  return parts_only ? ContentFormat::kParts : ContentFormat::kText;
}

std::vector<TextPiece> render_chat(const ChatRequest& request, const CheckpointChatTemplate& chat_template,
                                   const RenderOptions& options) {
  std::vector<TextPiece> pieces;
  try {
    pieces = chat_template.render(request.context, options);
  } catch (const Error& e) {
    throw ApiError(400, without_path(e.what()), "messages");
  }
  if (request.final_text && !cut_after(pieces, *request.final_text))
    throw ApiError(400, "continue_final_message: the chat template changes the last message",
                   "continue_final_message");
  return pieces;
}

}  // namespace quire::server
