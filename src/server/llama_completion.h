#pragma once

#include <string>
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
class LlamaResponse final : public Response {
 public:
  LlamaResponse(ResponseHead head, LlamaRequest request, const ServedModel& model);

  std::string events(std::size_t prompt, const RequestUpdate& update) override;
  std::string failure_events(const ApiError& error) override { return to_event(openai_error(error)); }
  OrderedJson body(Outputs outputs, const std::optional<Timings>& timings = {}) override;

 private:
  // This text of an output, and all its tokens that were not told before.
  OrderedJson piece(std::size_t prompt, const RequestUpdate& update, std::string_view text);
  OrderedJson last_piece(std::size_t prompt, const RequestUpdate& update, std::string_view text);

  const LlamaRequest request_;
  const ServedModel& model_;
  std::vector<std::size_t> sent_;  // tokens of each output of each prompt
};

}  // namespace quire::server
