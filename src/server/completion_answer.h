#pragma once

#include "server/answer.h"
#include "server/completion_request.h"
#include "server/completion_response.h"

namespace quire::server {

class CompletionAnswer final : public Answer {
 public:
  template <typename... Args>
  explicit CompletionAnswer(CompletionRequest request, Args&&... args)
      : Answer(std::forward<Args>(args)...), request_(std::move(request)), stream_(head_, request_, context_.model) {}

 private:
  const ApiRequest& request() const override { return request_; }
  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override {
    std::vector<OrderedJson> chunks;
    if (auto chunk = stream_.chunk(prompt, update)) chunks.push_back(std::move(*chunk));
    return chunks;
  }
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) override {
    return stream_.last(timings);
  }
  void take(std::size_t, const RequestUpdate&) override {}
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override {
    return completion_body(head_, request_, outputs, context_.model, timings);
  }

  CompletionRequest request_;
  CompletionStream stream_;
};

}  // namespace quire::server
