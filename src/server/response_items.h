#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire::server {

// One item of a conversation, as /v1/responses has them.
struct ResponseItem {
  std::string type = {};  // message, reasoning, function_call, function_call_output, item_reference
  std::string id = {};
  std::string status = "completed";       // or in_progress, incomplete
  std::string role = {};                  // of a message
  std::vector<std::string> texts = {};    // of a message, of reasoning, or of a function's output
  std::vector<std::string> summary = {};  // of reasoning
  std::string call_id = {};               // of calls and their outputs
  std::string name = {}, arguments = {};  // of calls
};

// ApiError, which begins with the place, for what is none, and for content that is no text.
ResponseItem read_item(const OrderedJson& value, const std::string& place);
OrderedJson item_json(const ResponseItem& item);

// Adds it to the messages of a chat: what the model wrote in one turn is one message.
void add_to_chat(const ResponseItem& item, OrderedJson& messages);

// Ids that say of which response an item is.
std::string item_id(std::string_view type, std::string_view response_id, std::size_t index);
std::string response_of_item(std::string_view item_id);

}  // namespace quire::server
