#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/llm.h"
#include "server/api_request.h"
#include "server/api_response.h"

namespace quire::server {

// POST /v1/completions.
struct CompletionRequest : ApiRequest {
  std::vector<Prompt> prompts;
  bool echo = false;  // the prompt stands before the output, with log-probabilities if those are asked for
};

CompletionRequest parse_completion_request(const OrderedJson& body, const ServedModel& model);

// A field that is a text, texts, token ids or lists of those, within the model's limits. `name`: the field's.
std::vector<Prompt> to_prompts(const OrderedJson& value, const std::string& name, const ServedModel& model);
// The tokens of each; ids are taken out of the prompts.
std::vector<std::vector<TokenId>> tokenize_prompts(std::span<Prompt> prompts, bool add_special_tokens,
                                                   const ServedModel& model);

// What the engine gets, one for each prompt, apart from on_update. The request keeps the texts that echo
// shows, and else nothing of its prompts but how many they are.
std::vector<EngineRequest> make_engine_requests(CompletionRequest& request, const ServedModel& model);

// The answer of /v1/completions. The model outlives it.
std::unique_ptr<Response> make_completion_response(ResponseHead head, CompletionRequest request,
                                                   const ServedModel& model);

}  // namespace quire::server
