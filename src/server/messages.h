#pragma once

#include <optional>
#include <string>
#include <utility>

#include "server/chat_output.h"
#include "server/chat_request.h"

namespace quire::server {

// Whom a body of Anthropic's Messages API is read for.
struct MessagesReader {
  const ServedModel& model;
  ContentFormat format;
  bool reasons = false;      // the model, in a way that is known: a budget can hold it
  bool only_counts = false;  // POST /v1/messages/count_tokens: max_tokens may be missing
};

// POST /v1/messages as the chat that it asks for. ApiError that names the field as this API has it.
// Turns of one role that follow each other are one. System messages behind the first turn become text of the
// user's, or of the tool's result before them: most templates take one, at the beginning.
ChatRequest parse_messages_request(OrderedJson body, const MessagesReader& reader);

// The body of an error in Anthropic's form: {"type": "error", "error": {type, message}, "request_id"}. What
// does not fit in the context or the KV cache is said in the words by which clients know it.
OrderedJson anthropic_error(const ApiError& error, const std::string& request_id);

// The answer of /v1/messages.
class MessagesResponse final : public BlockResponse {
 public:
  // head.id: "msg_…".
  MessagesResponse(ResponseHead head, const ChatRequest& request, std::string request_id,
                   const MakeParser& make_parser)
      : BlockResponse(std::move(head), {.stream = request.stream}, true, make_parser),
        include_reasoning_(request.include_reasoning),
        request_id_(std::move(request_id)) {}

  std::string last_events(const std::optional<Timings>& timings) override;
  std::string failure_events(const ApiError& error) override {
    return to_event(anthropic_error(error, request_id_), "error");
  }
  OrderedJson body(Outputs, const std::optional<Timings>& = {}) override { return message(); }

 private:
  OrderedJson message() const;
  void begin() override { send("message_start", {{"message", message()}}); }
  void open(const ToolCallDelta* call) override;
  void append(const std::string& text) override;
  void close(bool complete) override;
  void finish(const CompletionOutput& output) override;
  void send(const char* name, OrderedJson fields);
  void send_delta(const char* type, const char* field, const std::string& text);

  const bool include_reasoning_;
  const std::string request_id_;
  OrderedJson content_ = OrderedJson::array();
  std::string arguments_;                    // of the open call
  OrderedJson stop_reason_, stop_sequence_;  // null before the end
};

}  // namespace quire::server
