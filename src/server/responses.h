#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/chat_output.h"
#include "server/response_store.h"

namespace quire::server {

// What a request to /v1/responses is read with, and answered.
struct ResponsesContext {
  const ServedModel& model;
  ResponseStore& store;
  std::size_t key;  // the API key that opened it
  std::string id;   // of the answer: resp_ and 32 digits
};

// POST /v1/responses.
struct ResponsesRequest {
  ChatRequest chat;
  std::string echo;                 // JSON: the fields of its answer that are the request's
  bool store = false;               // the answer is to be kept
  std::vector<StoredText> earlier;  // if so: items of the turns before
  std::string input;                // and those of this one
  std::size_t num_items = 0;        // of this one: those of the answer are counted from there
};

ResponsesRequest parse_responses_request(OrderedJson body, const ResponsesContext& context);

// OpenAI's form of an error that may be a chat's, in the words of /v1/responses.
OrderedJson responses_error(const ApiError& error, const std::string& request_id);

// The answer of /v1/responses, put together item by item as its text comes, whole or streamed; what it was at
// its end is kept. Model and store outlive it.
std::unique_ptr<Response> make_responses_response(ResponseHead head, ResponsesRequest request,
                                                  const ResponsesContext& context,
                                                  const MakeParser& make_parser);

}  // namespace quire::server
