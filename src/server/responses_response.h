#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/api_response.h"
#include "server/chat_output.h"
#include "server/response_items.h"
#include "server/responses_request.h"

namespace quire::server {

// The answer of /v1/responses, put together item by item as its text comes, whether whole or streamed. It is
// kept when it ends. Model and store outlive it.
class ResponsesResponse final : public Response {
 public:
  ResponsesResponse(ResponseHead head, ResponsesRequest request, const ResponsesContext& context,
                    const MakeParser& make_parser);

  std::string events(std::size_t prompt, const RequestUpdate& update) override;
  std::string last_events(const std::optional<Timings>& timings) override;
  std::string failure_events(const ApiError& error) override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(std::span<const RequestOutput> outputs,
                   const std::optional<Timings>& timings = {}) override;

 private:
  void emit(std::string_view type, OrderedJson fields);
  void emit_of_item(std::string_view type, OrderedJson fields);
  void begin();
  void add(const OutputDelta& delta);
  void add_text(std::string_view type, const std::string& text);
  void add_call(const ToolCallDelta& call);
  void open(ResponseItem item);
  void close(bool complete);
  OrderedJson open_item() const;
  void finish(const CompletionOutput& output);
  void complete(const std::optional<Timings>& timings);

  const ResponsesRequest request_;
  const ServedModel& model_;
  ResponseStore& store_;
  const std::size_t key_;
  ChatOutput output_;
  OrderedJson answer_;
  OrderedJson items_ = OrderedJson::array();         // that are complete
  ResponseItem item_;                                // that is not; without a type: none
  OrderedJson logprobs_ = OrderedJson::array();      // of the open message
  OrderedJson new_logprobs_ = OrderedJson::array();  // of tokens whose text has not come yet
  Usage usage_;
  std::string events_;  // that are to be sent
  std::int64_t sequence_number_ = 0;
  bool begun_ = false;
};

}  // namespace quire::server
