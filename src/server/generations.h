#pragma once

#include "server/chat_response.h"
#include "server/completion_response.h"
#include "server/generation.h"
#include "server/output_format.h"
#include "server/text_requests.h"

namespace quire::server {

class CompletionGeneration final : public Generation {
 public:
  CompletionGeneration(std::shared_ptr<ApiService> service, std::shared_ptr<Exchange> exchange,
                       ResponseHead head, CompletionRequest request);

 private:
  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) override;
  void take(const RequestUpdate&) override {}
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override;

  const ResponseHead head_;
  const CompletionRequest request_;
  CompletionStream stream_;
};

class ChatGeneration final : public Generation {
 public:
  // prompt: its text, whose end says whether the output begins within reasoning.
  ChatGeneration(std::shared_ptr<ApiService> service, std::shared_ptr<Exchange> exchange, ResponseHead head,
                 ChatRequest request, std::string_view prompt);

 private:
  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override;
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) override;
  void take(const RequestUpdate& update) override;
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override;

  struct Parsing {
    std::unique_ptr<OutputParser> parser;
    std::size_t num_tokens = 0;  // that were parsed
  };
  OutputDelta parse(const RequestUpdate& update);

  const ResponseHead head_;
  const ChatRequest request_;
  ChatStream stream_;
  std::vector<Parsing> parsing_;
  std::vector<ChatOutput> parsed_;  // of a whole answer, by output
};

class EmbeddingGeneration final : public Generation {
 public:
  EmbeddingGeneration(std::shared_ptr<ApiService> service, std::shared_ptr<Exchange> exchange,
                      ResponseHead head, EmbeddingsRequest request);

 private:
  std::vector<OrderedJson> chunks(std::size_t, const RequestUpdate&) override { return {}; }
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>&) override { return std::nullopt; }
  void take(const RequestUpdate&) override {}
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override;

  const ResponseHead head_;
  const EmbeddingsRequest request_;
};

}  // namespace quire::server
