#pragma once

#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/response_store.h"

namespace quire::server {

// What a request to /v1/responses is read with.
struct ResponsesContext {
  const ServedModel& model;
  ContentFormat format;
  ResponseStore& store;
  std::size_t key;        // the API key that opened it
  const std::string& id;  // of the answer: resp_ and 32 digits
};

// POST /v1/responses.
struct ResponsesRequest {
  ChatRequest chat;
  OrderedJson echo;           // the fields of the request that stand in its answer
  bool store = false;         // the answer is to be kept
  StoredItems earlier;        // the conversation so far, if it is
  std::string input;          // and the items of this request, as JSON
  std::size_t num_items = 0;  // of this request: those of the answer are counted from there
};

ResponsesRequest parse_responses_request(OrderedJson body, const ResponsesContext& context);

// An error that may be a chat's, in the words of /v1/responses.
ApiError responses_error(const ApiError& error);
OrderedJson responses_error_body(const ApiError& error, const std::string& request_id);

}  // namespace quire::server
