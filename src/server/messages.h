#pragma once

#include <memory>
#include <string>

#include "server/chat_output.h"

namespace quire::server {

// POST /v1/messages of Anthropic's Messages API as the chat that it asks for; or, only_counts, POST
// /v1/messages/count_tokens, where max_tokens may be missing. ApiError that names the field as this API has
// it. Turns of one role that follow each other are one. System messages behind the first turn become text of
// the user's, or of the tool's result before them: most templates take one, at the beginning.
ChatRequest parse_messages_request(OrderedJson body, const ServedModel& model, bool only_counts = false);

// The body of an error in Anthropic's form: {"type": "error", "error": {type, message}, "request_id"}. What
// does not fit in the context or the KV cache is said in the words by which clients know it.
OrderedJson anthropic_error(const ApiError& error, const std::string& request_id);

// The answer of /v1/messages. head.id: "msg_…".
std::unique_ptr<Response> make_messages_response(ResponseHead head, const ChatRequest& request,
                                                 std::string request_id, const MakeParser& make_parser);

}  // namespace quire::server
