#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api_response.h"
#include "server/completion_request.h"

namespace quire::server {

// The whole answer of /v1/completions; `outputs`: of each prompt, in order, all finished.
OrderedJson completion_body(const ResponseHead& head, const CompletionRequest& request,
                            std::span<const RequestOutput> outputs, const ServedModel& model,
                            const std::optional<Timings>& timings = {});

// The chunks of a streamed one. Request and model outlive it. For one thread.
class CompletionStream {
 public:
  CompletionStream(ResponseHead head, const CompletionRequest& request, const ServedModel& model);

  // The choice of an output of the prompt of that index: all that was not given before, and this text.
  OrderedJson choice(std::size_t prompt, const RequestOutput& request, const CompletionOutput& output,
                     std::string_view new_text);
  // What an update of that prompt adds; nothing while there is no token yet.
  std::optional<OrderedJson> chunk(std::size_t prompt, const RequestUpdate& update);
  // The last one; nothing where neither usage nor timings are asked for.
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const;

 private:
  struct Choice {
    std::size_t tokens = 0;  // that were sent
    bool begun = false;
    std::optional<CompletionLogprobs> logprobs;
  };
  struct PromptState {
    std::vector<Choice> choices;
    Usage usage;
  };

  ResponseHead head_;
  const CompletionRequest& request_;
  const ServedModel& model_;
  std::vector<PromptState> prompts_;
};

}  // namespace quire::server
