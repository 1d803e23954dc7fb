#pragma once

#include <optional>
#include <vector>

#include "server/api_response.h"
#include "server/chat_output.h"
#include "server/chat_request.h"

namespace quire::server {

// The answer of /v1/chat/completions. The model outlives it.
class ChatResponse final : public ChunkResponse {
 public:
  ChatResponse(ResponseHead head, ChatRequest request, const ServedModel& model,
               const MakeParser& make_parser);

  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(Outputs outputs, const std::optional<Timings>& timings = {}) override;

 private:
  struct Choice : ChatOutput {
    bool begun = false;
    OutputDelta message;  // of a whole answer: all deltas, joined
  };

  Choice& choice_of(const RequestUpdate& update) { return choices_[update.output.index]; }
  std::int64_t reasoning_tokens() const;
  OrderedJson begin_chunk(const RequestUpdate& update, OrderedJson delta) const;
  void add_first(const RequestUpdate& update, std::vector<OrderedJson>& chunks) const;
  // What a choice has beside its text; sent: tokens, before.
  void complete(OrderedJson& choice, const CompletionOutput& output, std::size_t sent) const;

  const ChatRequest request_;
  const ServedModel& model_;
  std::vector<Choice> choices_;
  Usage usage_;  // of a stream
};

}  // namespace quire::server
