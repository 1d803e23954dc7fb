#pragma once

#include <memory>
#include <vector>

#include "server/api_response.h"

namespace quire::server {

// POST /completion of llama.cpp's server, as its documentation has it.
struct LlamaRequest : ApiRequest {
  std::vector<std::vector<TokenId>> prompts;
  bool cache_prompt = true;
  bool return_tokens = false;
  bool timings_per_token = false;
  OrderedJson settings;  // generation_settings: what was asked for, by llama.cpp's names
};

// ApiError for samplers that are not here and are asked for; its param is llama.cpp's name.
LlamaRequest parse_llama_request(const OrderedJson& body, const ServedModel& model);

// An object for each output, in a list where there are several. A stream's events are the pieces of the text,
// then such an object without text; nothing follows the last one. The model outlives it.
std::unique_ptr<Response> make_llama_response(ResponseHead head, LlamaRequest request,
                                              const ServedModel& model);

}  // namespace quire::server
