#pragma once

#include <memory>
#include <string>

#include "server/chat_output.h"
#include "server/chat_request.h"

namespace quire::server {

// Whom a body of Anthropic's Messages API is read for.
struct MessagesReader {
  const ServedModel& model;
  ContentFormat format;
  bool reasons = false;      // the model, in a way that is known: a budget can hold it
  bool only_counts = false;  // POST /v1/messages/count_tokens: max_tokens may be missing
};

// POST /v1/messages as the chat that it asks for. ApiError that names the field as this API has it.
// Turns of one role that follow each other are one. System messages behind the first turn become text of the
// user's, or of the tool's result before them: most templates take one, at the beginning.
ChatRequest parse_messages_request(OrderedJson body, const MessagesReader& reader);

// The body of an error in Anthropic's form: {"type": "error", "error": {type, message}, "request_id"}. What
// does not fit in the context or the KV cache is said in the words by which clients know it.
OrderedJson anthropic_error(const ApiError& error, const std::string& request_id);

// The answer of /v1/messages. head.id: "msg_…".
std::unique_ptr<Response> make_messages_response(ResponseHead head, const ChatRequest& request,
                                                 std::string request_id, const MakeParser& make_parser);

}  // namespace quire::server
