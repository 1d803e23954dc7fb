#include "server/chat_output.h"

#include <span>

namespace quire::server {

OutputDelta ChatOutput::take(const RequestUpdate& update) {
  OutputDelta delta = parser->parse(update.new_text);
  if (update.output.finished()) delta.append(parser->finish());
  const std::size_t taken = std::exchange(tokens, update.output.token_ids.size());
  if (!delta.reasoning.empty()) reasoning_tokens += static_cast<std::int64_t>(tokens - taken);
  has_calls = has_calls || !delta.tool_calls.empty();
  return delta;
}

void BlockResponse::take(const RequestUpdate& update) {
  const std::size_t taken = output_.tokens;
  const OutputDelta delta = output_.take(update);
  usage_ = usage_of(update);
  usage_.reasoning_tokens = output_.reasoning_tokens;
  if (output_.tokens == taken && delta.empty() && !update.output.finished()) return;
  if (!std::exchange(begun_, true)) begin();
  add(delta);
  if (update.output.finished()) finish(update.output);
}

void BlockResponse::change(Block block, const ToolCallDelta* call) {
  if (open_ != Block::kNone) close(true);
  open_ = block;
  open(call);
}

// First what goes on with the open block.
void BlockResponse::add(const OutputDelta& delta) {
  const auto add_piece = [&](Block block, const std::string& text) {
    if (text.empty()) return;
    if (open_ != block) change(block);
    append(text);
  };
  std::span<const ToolCallDelta> calls = delta.tool_calls;
  if (!calls.empty() && calls.front().id.empty()) {
    if (!calls.front().arguments.empty()) append(calls.front().arguments);
    calls = calls.subspan(1);
  }
  const bool text_first = open_ == Block::kText;
  if (text_first) add_piece(Block::kText, delta.content);
  if (reasons_) add_piece(Block::kReasoning, delta.reasoning);
  if (!text_first) add_piece(Block::kText, delta.content);
  for (const ToolCallDelta& call : calls) {
    change(Block::kCall, &call);
    add_piece(Block::kCall, call.arguments);
  }
}

}  // namespace quire::server
