#pragma once

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

}  // namespace quire::server
