#include "server/chat_messages.h"


#include "server/api_error.h"
#include "server/json_fields.h"

namespace quire::server {
namespace {

// The text of one part of a content.
const std::string& part_text(const OrderedJson& part, const std::string& place) {
  if (part.is_string()) return part.get_ref<const std::string&>();
  const JsonFields fields(part, place);
  const std::string* type = fields.text("type");
  const bool is_text = type == nullptr || *type == "text" || *type == "input_text" || *type == "output_text";
  if (!is_text && *type != "refusal") {
    refuse(fields.place_of("type"), "is {}; this model takes text alone", in_quotes(*type));
  }
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
    const std::string where = call.place_of("function");
    const auto function = call.object("function");
    if (!function) refuse(where, "is missing");
    const std::string* name = function->text("name");
    if (name == nullptr || name->empty()) refuse(where, "has no name");
    read.push_back(call.object());
    read.back()["function"]["arguments"] =
        read_arguments(function->find("arguments"), function->place_of("arguments"));
  }
  return read;
}

OrderedJson read_message(const JsonFields& fields, ContentFormat format) {
  if (fields.asks("function_call")) {
    refuse(fields.place_of("function_call"), "is not supported; use tool_calls");
  }
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

}  // namespace

std::vector<std::string> read_texts(const OrderedJson& content, const std::string& place) {
  if (content.is_string()) return {content.get<std::string>()};
  if (!content.is_array())
    refuse(place, "is {}; it must be a string, a list of parts or null", shown(content));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < content.size(); ++i)
    texts.push_back(part_text(content[i], format_text("{}[{}]", place, i)));
  return texts;
}

OrderedJson read_arguments(const OrderedJson* arguments, const std::string& place) {
  if (arguments == nullptr) return OrderedJson::object();
  if (!arguments->is_string()) return to_object(*arguments, place);
  const std::string& text = arguments->get_ref<const std::string&>();
  if (text.empty()) return OrderedJson::object();
  return to_object(parse_text(text, place, place), place);
}

OrderedJson to_template_messages(const OrderedJson& messages, ContentFormat format) {
  OrderedJson read = OrderedJson::array();
  if (to_list(messages, "messages").empty()) refuse("messages", "is empty; at least one message is needed");
  for (const JsonFields& message : to_objects(messages, "messages"))
    read.push_back(read_message(message, format));
  return read;
}

OrderedJson function_tool(OrderedJson function, const std::string& id) {
  OrderedJson tool;
  if (!id.empty()) tool["id"] = id;
  tool["type"] = "function";
  tool["function"] = std::move(function);
  return tool;
}

std::string text_of(const OrderedJson& template_message) {
  const OrderedJson& content = template_message["content"];
  if (content.is_string()) return content.get<std::string>();
  return content.empty() ? "" : content.back()["text"].get<std::string>();
}

}  // namespace quire::server
