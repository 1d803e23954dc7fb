#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "dialects/output_format.h"
#include "server/api_response.h"
#include "server/chat_request.h"

namespace quire::server {

using dialects::OutputDelta;
using dialects::OutputParser;
using dialects::ToolCallDelta;

using MakeParser = std::function<std::unique_ptr<OutputParser>()>;  // of one output's text

// One output of a chat, as it comes.
struct ChatOutput {
  std::unique_ptr<OutputParser> parser;
  std::size_t tokens = 0;     // that were taken
  std::size_t heard = 0;      // up to the last one that came with text
  std::size_t given_out = 0;  // up to the last one with which a delta came
  std::int64_t reasoning_tokens = 0;
  bool has_calls = false;

  // What the update adds; of an output's last update, with the rest that its parser has held back.
  OutputDelta take(const RequestUpdate& update);
};

// The answer to a chat as blocks, one after another as the output has them, whole or in events.
class BlockResponse : public Response {
 public:
  std::string events(std::size_t prompt, const RequestUpdate& update) override;

 protected:
  enum class Block { kNone, kReasoning, kText, kCall };

  // reasons: reasoning has blocks.
  BlockResponse(ResponseHead head, const ChatRequest& request, bool reasons, const MakeParser& make_parser)
      : Response(std::move(head), request), reasons_(reasons) {
    output_.parser = make_parser();
  }

  // Before the first block; open_ is what is opened, by `call` where it is one; a piece of the open block's
  // text, or of its call's arguments; the end of one; the end of the output.
  virtual void begin() = 0;
  virtual void open(const ToolCallDelta* call) = 0;
  virtual void append(const std::string& text) = 0;
  virtual void close(bool complete) = 0;
  virtual void finish(const CompletionOutput& output) = 0;
  virtual void hide() {}  // a piece of reasoning came, which has no block
  void change(Block block, const ToolCallDelta* call = nullptr);

  ChatOutput output_;
  Usage usage_;  // so far
  Block open_ = Block::kNone;
  std::string events_;  // of a stream, not yet given out

 private:
  void add(const OutputDelta& delta);

  const bool reasons_;
  bool begun_ = false;
};

// The answer of /v1/chat/completions. The model outlives it.
std::unique_ptr<Response> make_chat_response(ResponseHead head, ChatRequest request, const ServedModel& model,
                                             const MakeParser& make_parser);

}  // namespace quire::server
