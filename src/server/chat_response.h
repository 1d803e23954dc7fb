#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "server/api_response.h"
#include "server/chat_request.h"
#include "server/output_parser.h"

namespace quire::server {

// What a parser has made of one output, joined.
struct ChatOutput {
  OutputDelta message;
  std::int64_t reasoning_tokens = 0;

  // `num_tokens`: that have come with it.
  void add(const OutputDelta& delta, std::int64_t num_tokens);
};

// The whole answer of /v1/chat/completions; `parsed`: of each output, in order, all finished.
OrderedJson chat_body(const ResponseHead& head, const ChatRequest& request, const RequestOutput& output,
                      std::span<const ChatOutput> parsed, const ServedModel& model,
                      const std::optional<Timings>& timings = {});

// The chunks of a streamed one. Request and model outlive it. For one thread.
class ChatStream {
 public:
  ChatStream(ResponseHead head, const ChatRequest& request, const ServedModel& model);

  // What an update adds, in order; none while there is no token yet. `delta`: what a parser has made of the
  // update's text; of an output's last update, with the rest that it has held back.
  std::vector<OrderedJson> chunks(const RequestUpdate& update, const OutputDelta& delta);
  // The last one; nothing where neither usage nor timings are asked for.
  std::optional<OrderedJson> last(const std::optional<Timings>& timings = {}) const;

 private:
  struct Choice {
    std::size_t tokens = 0;  // that were sent
    bool begun = false;
    bool has_calls = false;
    std::int64_t reasoning_tokens = 0;
  };

  OrderedJson begin_chunk(const RequestUpdate& update, OrderedJson delta) const;
  void add_first(const RequestUpdate& update, std::vector<OrderedJson>& chunks) const;
  void complete(OrderedJson& chunk, const RequestUpdate& update, const Choice& choice) const;

  ResponseHead head_;
  const ChatRequest& request_;
  const ServedModel& model_;
  std::vector<Choice> choices_;
  Usage usage_;
};

}  // namespace quire::server
