#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
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

// A field that is a text, a list of texts, token ids or a list of those, within the model's limits. `name` is
// the field's.
std::vector<Prompt> to_prompts(const OrderedJson& value, const std::string& name, const ServedModel& model);
// The tokens of each; ids are taken out of the prompts.
std::vector<std::vector<TokenId>> tokenize_prompts(std::span<Prompt> prompts, bool add_special_tokens,
                                                   const ServedModel& model);

// What the engine gets, one for each prompt, apart from on_update. The request keeps the texts that echo
// shows, and else nothing of its prompts but how many they are.
std::vector<EngineRequest> make_engine_requests(CompletionRequest& request, const ServedModel& model);

// The answer of /v1/completions. The model outlives it.
class CompletionResponse final : public ChunkResponse {
 public:
  CompletionResponse(ResponseHead head, CompletionRequest request, const ServedModel& model);

  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const override;
  OrderedJson body(Outputs outputs, const std::optional<Timings>& timings = {}) override;

 private:
  struct Choice {
    std::size_t tokens = 0;  // that were sent
    bool begun = false;
    std::optional<CompletionLogprobs> logprobs;
  };

  std::size_t index_of(std::size_t prompt, const CompletionOutput& output) const {
    return prompt * request_.params.n + output.index;
  }
  // The choice of an output of the prompt of that index: all that was not given before, and this text.
  OrderedJson choice(std::size_t prompt, const RequestOutput& request, const CompletionOutput& output,
                     std::string_view new_text);

  const CompletionRequest request_;
  const ServedModel& model_;
  std::vector<Choice> choices_;  // of all prompts
  std::vector<Usage> usages_;    // by prompt
};

}  // namespace quire::server
