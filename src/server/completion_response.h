#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "server/api_response.h"
#include "server/completion_request.h"

namespace quire::server {

// The answer of /v1/completions. The model outlives it.
class CompletionResponse final : public ChunkResponse {
 public:
  CompletionResponse(ResponseHead head, CompletionRequest request, const ServedModel& model);

  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const override;
  OrderedJson body(std::span<const RequestOutput> outputs,
                   const std::optional<Timings>& timings = {}) override;

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
