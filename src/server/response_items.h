#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace quire::server {

// Items of conversations as /v1/responses has them: message, function_call, function_call_output, reasoning.

// An item of a request with its own fields alone, as it stands in answers, or an item_reference. Its id is
// empty where it has none. ApiError, which begins with the place, for what is none of these, and for content
// that is no text.
OrderedJson read_item(const OrderedJson& value, const std::string& place);

// A text as a part of an item: output_text, input_text, reasoning_text, summary_text.
OrderedJson text_part(std::string_view type, const std::string& text);

// Adds an item to the messages of a chat: what the model wrote in one turn is one message.
void add_to_chat(const OrderedJson& item, OrderedJson& messages);

// An id that says of which response an item is.
std::string item_id(std::string_view type, std::string_view response_id, std::size_t index);
std::string response_of_item(std::string_view item_id);

}  // namespace quire::server
