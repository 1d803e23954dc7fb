#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "server/api_response.h"
#include "server/chat_request.h"
#include "server/completion_request.h"

namespace quire::server {

// POST /tokenize: a prompt, or the messages of a chat.
struct TokenizeRequest {
  std::optional<std::string> prompt;
  std::optional<ChatRequest> chat;  // where there is no prompt
  bool add_special_tokens = true;
  bool return_token_strs = false;
  ApiRequest truncation;  // of a prompt; a chat has its own
};
TokenizeRequest parse_tokenize_request(const OrderedJson& body, const ServedModel& model,
                                       ContentFormat format);
OrderedJson tokenize_body(const TokenizeRequest& request, const std::vector<TokenId>& tokens,
                          const ServedModel& model);

// POST /detokenize: its tokens. Special tokens are shown; the text has vLLM's name and llama.cpp's.
std::vector<TokenId> parse_detokenize_request(const OrderedJson& body, const ServedModel& model);
OrderedJson detokenize_body(const std::vector<TokenId>& tokens, const ServedModel& model);

// GET /v1/models and /v1/models/{id}; of the latter, ApiError (404) for an id that nothing has.
OrderedJson models_body(const ServedModel& model, std::int64_t created);
OrderedJson model_body(const std::string& id, const ServedModel& model, std::int64_t created);

}  // namespace quire::server
