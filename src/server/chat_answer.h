#pragma once

#include "server/answer.h"
#include "server/chat_request.h"
#include "server/chat_response.h"
#include "server/output_format.h"

namespace quire::server {

class ChatAnswer final : public Answer {
 public:
  // prompt: its end as text, which says whether the output begins within reasoning.
  template <typename... Args>
  ChatAnswer(ChatRequest request, const OutputFormat& format, const std::string& prompt, Args&&... args)
      : Answer(std::forward<Args>(args)...), request_(std::move(request)), stream_(head_, request_, context_.model) {
    OutputFormat wanted = format;
    if (!request_.parse_tools) wanted.tool_calls.reset();
    for (int i = 0; i < request_.params.n; ++i)
      parsers_.push_back(make_output_parser(wanted, prompt, {.parallel_tool_calls = !request_.one_tool_call, .new_id = {}}));
    parsed_.resize(parsers_.size());
    num_tokens_.resize(parsers_.size());
  }

 private:
  const ApiRequest& request() const override { return request_; }
  std::vector<OrderedJson> chunks(std::size_t, const RequestUpdate& update) override {
    return stream_.chunks(update, parse(update));
  }
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) override {
    return stream_.last(timings);
  }
  void take(std::size_t, const RequestUpdate& update) override {
    const auto index = static_cast<std::size_t>(update.output.index);
    const std::size_t before = std::exchange(num_tokens_[index], update.output.token_ids.size());
    parsed_[index].add(parse(update), static_cast<std::int64_t>(num_tokens_[index] - before));
  }
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override {
    return chat_body(head_, request_, outputs.front(), parsed_, context_.model, timings);
  }

  OutputDelta parse(const RequestUpdate& update) {
    OutputParser& parser = *parsers_[static_cast<std::size_t>(update.output.index)];
    OutputDelta delta = parser.parse(update.new_text);
    if (update.output.finished()) append(delta, parser.finish());
    return delta;
  }

  ChatRequest request_;
  ChatStream stream_;
  std::vector<std::unique_ptr<OutputParser>> parsers_;  // by output
  std::vector<ChatOutput> parsed_;
  std::vector<std::size_t> num_tokens_;
};

}  // namespace quire::server
