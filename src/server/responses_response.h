#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/chat_output.h"
#include "server/responses_request.h"

namespace quire::server {

// The answer of /v1/responses, put together item by item as its text comes, whole or streamed; what it was at
// its end is kept. Model and store outlive it.
class ResponsesResponse final : public BlockResponse {
 public:
  ResponsesResponse(ResponseHead head, ResponsesRequest request, const ResponsesContext& context,
                    const MakeParser& make_parser);

  std::string last_events(const std::optional<Timings>& timings) override;
  std::string failure_events(const ApiError& error) override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(std::span<const RequestOutput> outputs,
                   const std::optional<Timings>& timings = {}) override;

 private:
  std::string answer_text(bool short_echo) const;
  void emit(std::string_view type, OrderedJson fields);
  void emit_answer(std::string_view type, bool short_echo = false);
  void begin() override;
  void open(const ToolCallDelta* call) override;
  void append(const std::string& text) override;
  void close(bool complete) override;
  void finish(const CompletionOutput& output) override;
  void keep(const std::optional<Timings>& timings);

  ResponsesRequest request_;
  const ServedModel& model_;
  ResponseStore& store_;
  const std::size_t key_;
  OrderedJson answer_;                               // without what it echoes
  OrderedJson items_ = OrderedJson::array();         // that are done
  OrderedJson item_;                                 // that is not; null: none
  OrderedJson new_logprobs_ = OrderedJson::array();  // of tokens whose text has not come yet
  std::int64_t sequence_number_ = 0;
};

}  // namespace quire::server
