#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "server/chat_request.h"

namespace quire::server {

// The answers of endpoints that generate nothing. ApiError of what is wrong with a request.

// POST /tokenize: of a prompt, of a chat, whose tokens `of_chat` has, or, as llama.cpp has it, of a content.
OrderedJson tokenize_body(const OrderedJson& body, const ServedModel& model,
                          const std::function<std::vector<TokenId>(const ChatRequest&)>& of_chat);
// POST /detokenize: its tokens. Special tokens are shown; the text has vLLM's name and llama.cpp's.
OrderedJson detokenize_body(const OrderedJson& body, const ServedModel& model);

// GET /v1/models/{id}, or, where the id is empty, GET /v1/models. ApiError (404) for an id that nothing has.
OrderedJson models_body(const std::string& id, const ServedModel& model, std::int64_t created);

// GET /openapi.json: what is served, in OpenAPI 3.1, with the limits that hold for this model. openapi.json
// has what is special of each route; what all have alike is added (openapi.cpp): the errors, that optional
// fields may be null, and the frames around schemas. `root_path` is a proxy's prefix.
OrderedJson openapi_document(const ServedModel& model, const std::string& root_path);

}  // namespace quire::server
