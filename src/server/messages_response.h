#pragma once

#include <optional>
#include <span>
#include <string>

#include "server/api_response.h"
#include "server/chat_output.h"
#include "server/chat_request.h"

namespace quire::server {

// The body of an error in Anthropic's form: {"type": "error", "error": {type, message}, "request_id"}. What
// does not fit in the context or the KV cache is said in the words by which clients know it.
OrderedJson anthropic_error(const ApiError& error, const std::string& request_id);

// The answer of /v1/messages: content blocks in the order in which the output has them.
class MessagesResponse final : public Response {
 public:
  // head.id: "msg_…".
  MessagesResponse(ResponseHead head, const ChatRequest& request, std::string request_id,
                   const MakeParser& make_parser);

  std::string events(std::size_t prompt, const RequestUpdate& update) override;
  std::string last_events(const std::optional<Timings>& timings) override;
  std::string failure_events(const ApiError& error) override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(std::span<const RequestOutput> outputs,
                   const std::optional<Timings>& timings = {}) override;

 private:
  enum class Block { kNone, kThinking, kText, kToolUse };

  OrderedJson message() const;
  // Each adds to events_ or content_.
  void add(const OutputDelta& delta);
  void begin(Block block, const ToolCallDelta* call = nullptr);
  void add_piece(const std::string& text);
  void end();
  void finish(const CompletionOutput& output);
  void send(const char* name, OrderedJson fields);

  const bool include_reasoning_;
  const std::string request_id_;
  ChatOutput output_;
  Usage usage_;
  Block open_ = Block::kNone;
  int num_ended_ = 0;                           // blocks
  bool begun_ = false;                          // the stream
  std::string events_;                          // of a stream, not yet given out
  OrderedJson content_ = OrderedJson::array();  // of a whole answer
  std::string arguments_;                       // of its open call
  OrderedJson stop_reason_, stop_sequence_;     // null before the end
};

}  // namespace quire::server
