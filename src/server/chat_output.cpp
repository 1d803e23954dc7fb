#include "server/chat_output.h"

#include <utility>

namespace quire::server {

OutputDelta ChatOutput::take(const RequestUpdate& update) {
  OutputDelta delta = parser->parse(update.new_text);
  if (update.output.finished()) delta.append(parser->finish());
  const std::size_t taken = std::exchange(tokens, update.output.token_ids.size());
  if (!delta.reasoning.empty()) reasoning_tokens += static_cast<std::int64_t>(tokens - taken);
  has_calls = has_calls || !delta.tool_calls.empty();
  return delta;
}

}  // namespace quire::server
