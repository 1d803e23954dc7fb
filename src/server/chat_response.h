#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dialects/output_parser.h"
#include "server/api_response.h"
#include "server/chat_request.h"

namespace quire::server {

using dialects::OutputDelta;
using dialects::OutputParser;
using dialects::ToolCallDelta;

// The answer of /v1/chat/completions. The model outlives it.
class ChatResponse final : public Response {
 public:
  // make_parser: of each output's text.
  ChatResponse(ResponseHead head, ChatRequest request, const ServedModel& model,
               const std::function<std::unique_ptr<OutputParser>()>& make_parser);

  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(std::span<const RequestOutput> outputs,
                   const std::optional<Timings>& timings = {}) override;

 private:
  struct Choice {
    std::unique_ptr<OutputParser> parser;
    std::size_t tokens = 0;  // that were sent, or taken
    std::int64_t reasoning_tokens = 0;
    bool begun = false;
    bool has_calls = false;
    OutputDelta message;  // of a whole answer: all deltas, joined
  };

  Choice& choice_of(const RequestUpdate& update);
  // What the update adds; of an output's last update, with the rest that its parser has held back.
  static OutputDelta parse(const RequestUpdate& update, Choice& choice);
  std::int64_t reasoning_tokens() const;
  OrderedJson begin_chunk(const RequestUpdate& update, OrderedJson delta) const;
  void add_first(const RequestUpdate& update, std::vector<OrderedJson>& chunks) const;
  void complete(OrderedJson& chunk, const RequestUpdate& update, const Choice& choice) const;

  const ChatRequest request_;
  const ServedModel& model_;
  std::vector<Choice> choices_;
  Usage usage_;  // of a stream
};

}  // namespace quire::server
