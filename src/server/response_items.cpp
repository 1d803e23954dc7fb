#include "server/response_items.h"

#include <algorithm>

#include "base/format.h"
#include "server/chat_request.h"
#include "server/json_fields.h"

namespace quire::server {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";
constexpr std::size_t kRandomDigits = 32;  // of a response's id

OrderedJson text_parts(const std::vector<std::string>& texts, std::string_view type) {
  OrderedJson parts = OrderedJson::array();
  for (const std::string& text : texts) parts.push_back(text_part(type, text));
  return parts;
}

// The texts of a list of reasoning's parts.
std::vector<std::string> read_reasoning(const OrderedJson& parts, const std::string& place) {
  std::vector<std::string> texts;
  for (const JsonFields& part : to_objects(parts, place)) texts.push_back(part.required_text("text"));
  return texts;
}

// The model's message that goes on with an item of this type, or a new one.
OrderedJson& assistant_message(const OrderedJson& type, OrderedJson& messages) {
  const auto goes_on = [&](const OrderedJson& last) {
    return last["role"] == "assistant" &&
           (type == "function_call" || (!last.contains("content") && !last.contains("tool_calls")));
  };
  if (messages.empty() || !goes_on(messages.back())) messages.push_back({{"role", "assistant"}});
  return messages.back();
}

void add_reasoning_item(const OrderedJson& item, OrderedJson& messages) {
  std::string text;
  for (const OrderedJson& part : item[item["content"].empty() ? "summary" : "content"])
    text += (text.empty() ? "" : "\n") + part["text"].get<std::string>();
  if (!text.empty()) append_text(assistant_message(item["type"], messages)["reasoning"], text);
}

}  // namespace

OrderedJson text_part(std::string_view type, const std::string& text) {
  OrderedJson part = {{"type", type}, {"text", text}};
  if (type != "output_text") return part;
  for (const char* list : {"annotations", "logprobs"}) part[list] = OrderedJson::array();
  return part;
}

OrderedJson read_item(const OrderedJson& value, const std::string& place) {
  const JsonFields fields(value, place);
  const bool is_reference = fields.find("role") == nullptr && fields.find("id") != nullptr;
  const std::string type =
      fields
          .choice("type", {"message", "function_call", "function_call_output", "reasoning", "item_reference"})
          .value_or(is_reference ? "item_reference" : "message");
  const bool is_cut = fields.get("status", to_text) == "incomplete";
  OrderedJson item = {{"id", fields.get("id", to_text).value_or("")},
                      {"type", type},
                      {"status", is_cut ? "incomplete" : "completed"}};
  if (type == "message") {
    const std::string& role = fields.required_choice("role", {"user", "assistant", "system", "developer"});
    item["role"] = role;
    item["content"] = text_parts(fields.required("content", read_texts),
                                 role == "assistant" ? "output_text" : "input_text");
  } else if (type == "reasoning") {
    const std::vector<std::string> none;
    item["summary"] = text_parts(fields.get("summary", read_reasoning).value_or(none), "summary_text");
    item["content"] = text_parts(fields.get("content", read_reasoning).value_or(none), "reasoning_text");
    item["encrypted_content"] = nullptr;
  } else if (type == "item_reference") {
    item["id"] = fields.required_text("id");
  } else {
    item["call_id"] = fields.required_text("call_id");
    if (type == "function_call") {
      item["name"] = fields.required_text("name");
      item["arguments"] = fields.required_text("arguments");
      if (!is_cut) read_arguments(&item["arguments"], fields.place_of("arguments"));
    } else {
      item["output"] = text_parts(fields.required("output", read_texts), "input_text");
    }
  }
  return item;
}

void add_to_chat(const OrderedJson& item, OrderedJson& messages) {
  const OrderedJson& type = item["type"];
  if (type == "reasoning") return add_reasoning_item(item, messages);
  if (type == "function_call_output") {
    messages.push_back({{"role", "tool"}, {"tool_call_id", item["call_id"]}, {"content", item["output"]}});
  } else if (type == "function_call") {
    if (item["status"] == "incomplete") return;  // its arguments may be broken off
    assistant_message(type, messages)["tool_calls"].push_back(
        function_tool({{"name", item["name"]}, {"arguments", item["arguments"]}}, item["call_id"]));
  } else if (item["role"] == "assistant") {
    assistant_message(type, messages)["content"] = item["content"];
  } else {
    // Templates know one system message, at the beginning: what stands beside it becomes a part of it.
    const std::string role = item["role"] == "user" ? "user" : "system";
    const bool goes_on = role == "system" && !messages.empty() && messages.back()["role"] == role;
    if (!goes_on) messages.push_back({{"role", role}, {"content", OrderedJson::array()}});
    for (const OrderedJson& part : item["content"]) messages.back()["content"].push_back(part);
  }
}

std::string item_id(std::string_view type, std::string_view response_id, std::size_t index) {
  const char* const prefix = type == "message" ? "msg_" : type == "reasoning" ? "rs_" : "fc_";
  return format_text("{}{}{:04x}", prefix, response_id.substr(kResponsePrefix.size()), index);
}

std::string response_of_item(std::string_view item_id) {
  const std::string_view digits = item_id.substr(std::min(item_id.find('_') + 1, item_id.size()));
  return format_text("{}{}", kResponsePrefix, digits.substr(0, kRandomDigits));
}

}  // namespace quire::server
