#include "server/response_items.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/format.h"
#include "server/chat_messages.h"
#include "server/json_fields.h"

namespace quire::server {
namespace {

constexpr std::string_view kResponsePrefix = "resp_";
constexpr std::size_t kRandomDigits = 32;  // of a response's id
constexpr std::pair<std::string_view, std::string_view> kItemPrefixes[] = {
    {"message", "msg_"}, {"reasoning", "rs_"}, {"function_call", "fc_"}, {"function_call_output", "fco_"}};

std::string required_text(const JsonFields& fields, std::string_view name) {
  return to_text(fields.required(name), fields.place_of(name));
}

// Parts of reasoning, which have one kind each.
std::vector<std::string> read_parts(const JsonFields& item, std::string_view name) {
  std::vector<std::string> texts;
  const OrderedJson* parts = item.find(name);
  if (parts == nullptr) return texts;
  const std::string place = item.place_of(name);
  for (std::size_t i = 0; i < to_list(*parts, place).size(); ++i)
    texts.push_back(required_text(JsonFields((*parts)[i], format_text("{}[{}]", place, i)), "text"));
  return texts;
}

OrderedJson parts_json(const std::vector<std::string>& texts, std::string_view type) {
  OrderedJson parts = OrderedJson::array();
  for (const std::string& text : texts) {
    OrderedJson part = {{"type", type}, {"text", text}};
    if (type == "output_text") part["annotations"] = part["logprobs"] = OrderedJson::array();
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string read_type(const JsonFields& fields) {
  constexpr std::array<std::string_view, 5> kTypes = {"message", "function_call", "function_call_output",
                                                      "reasoning", "item_reference"};
  if (const auto type = fields.get("type", to_choice, kTypes)) return *type;
  return fields.find("role") == nullptr && fields.find("id") != nullptr ? "item_reference" : "message";
}

void add_texts(OrderedJson& message, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) message["content"].push_back(text);
}

// The model's message that goes on with this item, or a new one.
OrderedJson& assistant_message(const ResponseItem& item, OrderedJson& messages) {
  const auto takes = [&](const OrderedJson& last) {
    return last["role"] == "assistant" &&
           (item.type == "function_call" || (!last.contains("content") && !last.contains("tool_calls")));
  };
  if (messages.empty() || !takes(messages.back())) messages.push_back({{"role", "assistant"}});
  return messages.back();
}

}  // namespace

ResponseItem read_item(const OrderedJson& value, const std::string& place) {
  const JsonFields fields(value, place);
  ResponseItem item;
  item.type = read_type(fields);
  if (const std::string* id = fields.text("id")) item.id = *id;
  if (const std::string* status = fields.text("status"); status != nullptr && *status == "incomplete")
    item.status = *status;
  if (item.type == "message") {
    constexpr std::array<std::string_view, 4> kRoles = {"user", "assistant", "system", "developer"};
    item.role = to_choice(fields.required("role"), fields.place_of("role"), kRoles);
    item.texts = read_texts(fields.required("content"), fields.place_of("content"));
  } else if (item.type == "reasoning") {
    item.texts = read_parts(fields, "content");
    item.summary = read_parts(fields, "summary");
  } else if (item.type == "function_call") {
    item.call_id = required_text(fields, "call_id");
    item.name = required_text(fields, "name");
    item.arguments = required_text(fields, "arguments");
    // A call that was cut off may have any.
    if (item.status == "completed") read_arguments(fields.find("arguments"), fields.place_of("arguments"));
  } else if (item.type == "function_call_output") {
    item.call_id = required_text(fields, "call_id");
    item.texts = read_texts(fields.required("output"), fields.place_of("output"));
  } else {
    item.id = required_text(fields, "id");
  }
  return item;
}

OrderedJson item_json(const ResponseItem& item) {
  OrderedJson json = {{"id", item.id}, {"type", item.type}, {"status", item.status}};
  if (item.type == "message") {
    json["role"] = item.role;
    json["content"] = parts_json(item.texts, item.role == "assistant" ? "output_text" : "input_text");
  } else if (item.type == "reasoning") {
    json["summary"] = parts_json(item.summary, "summary_text");
    json["content"] = parts_json(item.texts, "reasoning_text");
    json["encrypted_content"] = nullptr;
  } else {
    json["call_id"] = item.call_id;
    if (item.type == "function_call") {
      json["name"] = item.name;
      json["arguments"] = item.arguments;
    } else {
      json["output"] =
          item.texts.size() == 1 ? OrderedJson(item.texts.front()) : parts_json(item.texts, "input_text");
    }
  }
  return json;
}

void add_to_chat(const ResponseItem& item, OrderedJson& messages) {
  if (item.type == "function_call_output") {
    messages.push_back({{"role", "tool"}, {"tool_call_id", item.call_id}, {"content", item.texts}});
  } else if (item.type == "function_call") {
    if (item.status == "incomplete") return;
    assistant_message(item, messages)["tool_calls"].push_back(
        {{"id", item.call_id},
         {"type", "function"},
         {"function", {{"name", item.name}, {"arguments", item.arguments}}}});
  } else if (item.type == "reasoning") {
    const std::string text = join_text(item.texts.empty() ? item.summary : item.texts, "\n");
    if (text.empty()) return;
    OrderedJson& message = assistant_message(item, messages);
    message["reasoning"] =
        message.contains("reasoning") ? message["reasoning"].get<std::string>() + "\n" + text : text;
  } else if (item.role == "assistant") {
    add_texts(assistant_message(item, messages), item.texts);
  } else {
    // Templates know one system message, at the beginning: what stands beside it becomes a part of it.
    const std::string role = item.role == "developer" ? "system" : item.role;
    const bool goes_on = role == "system" && !messages.empty() && messages.back()["role"] == role;
    if (!goes_on) messages.push_back({{"role", role}});
    add_texts(messages.back(), item.texts);
  }
}

std::string item_id(std::string_view type, std::string_view response_id, std::size_t index) {
  std::string_view prefix;
  for (const auto& [known, its_prefix] : kItemPrefixes)
    if (known == type) prefix = its_prefix;
  return format_text("{}{}{:04x}", prefix, response_id.substr(kResponsePrefix.size()), index);
}

std::string response_of_item(std::string_view item_id) {
  const std::string_view digits = item_id.substr(std::min(item_id.find('_') + 1, item_id.size()));
  return format_text("{}{}", kResponsePrefix, digits.substr(0, kRandomDigits));
}

}  // namespace quire::server
