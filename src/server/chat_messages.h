#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quire::server {

// How a chat template takes the content of a message.
enum class ContentFormat {
  kText,   // a string
  kParts,  // a list of {type: text, text}
};

// The messages of a request as chat templates read them: content in one format, "" or [] where there is none;
// arguments of tool calls as objects; reasoning under both of its names, and as thinking where calls follow
// it; the developer as system. ApiError for what is no message, and for content that is no text.
OrderedJson to_template_messages(const OrderedJson& messages, ContentFormat format);

// The texts of a content: a string, or a list of parts. ApiError for what is no text.
std::vector<std::string> read_texts(const OrderedJson& content, const std::string& place);
// The arguments of a call, as a client sends them back: an object, or a string that holds one; null, "":
// none.
OrderedJson read_arguments(const OrderedJson* arguments, const std::string& place);

// A function as chats have it: of a tool, of what is chosen, and, with an id, of a call.
OrderedJson function_tool(OrderedJson function, const std::string& id = {});

// What templates take for no text.
constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";

// The text of a template message, in either format; of several parts, the last.
std::string text_of(const OrderedJson& template_message);

}  // namespace quire::server
