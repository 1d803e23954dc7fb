#include "server/generations.h"

#include <utility>

#include "server/chat_response.h"
#include "server/completion_response.h"
#include "server/output_format.h"

namespace quire::server {
namespace {

// One whose answer may be a stream.
template <typename Request, typename Stream>
class StreamedGeneration : public Generation {
 public:
  StreamedGeneration(Context context, Request request)
      : Generation(std::move(context), {request.stream, request.timings}),
        request_(std::move(request)),
        stream_(head(), request_, service().model()) {}

 protected:
  std::optional<OrderedJson> last_chunk(const std::optional<Timings>& timings) override {
    return stream_.last(timings);
  }

  const Request request_;
  Stream stream_;
};

class CompletionGeneration final : public StreamedGeneration<CompletionRequest, CompletionStream> {
 public:
  using StreamedGeneration::StreamedGeneration;

 private:
  std::vector<OrderedJson> chunks(std::size_t prompt, const RequestUpdate& update) override {
    std::vector<OrderedJson> chunks;
    if (auto chunk = stream_.chunk(prompt, update)) chunks.push_back(std::move(*chunk));
    return chunks;
  }
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override {
    return completion_body(head(), request_, outputs, service().model(), timings);
  }
};

class ChatGeneration final : public StreamedGeneration<ChatRequest, ChatStream> {
 public:
  ChatGeneration(Context context, ChatRequest request, std::string_view prompt)
      : StreamedGeneration(std::move(context), std::move(request)) {
    OutputFormat format = service().output_format();
    if (!request_.parse_tools) format.tool_calls.reset();
    const ToolParserOptions options{.parallel_tool_calls = !request_.one_tool_call, .new_id = {}};
    const auto n = static_cast<std::size_t>(request_.params.n);
    for (std::size_t i = 0; i < n; ++i) parsing_.push_back({make_output_parser(format, prompt, options), 0});
    parsed_.resize(n);
  }

 private:
  struct Parsing {
    std::unique_ptr<OutputParser> parser;
    std::size_t num_tokens = 0;  // that were parsed
  };

  OutputDelta parse(const RequestUpdate& update) {
    OutputParser& parser = *parsing_[static_cast<std::size_t>(update.output.index)].parser;
    OutputDelta delta = parser.parse(update.new_text);
    if (update.output.finished()) append(delta, parser.finish());
    return delta;
  }

  std::vector<OrderedJson> chunks(std::size_t, const RequestUpdate& update) override {
    return stream_.chunks(update, parse(update));
  }
  void take(const RequestUpdate& update) override {
    const auto index = static_cast<std::size_t>(update.output.index);
    const std::size_t before = std::exchange(parsing_[index].num_tokens, update.output.token_ids.size());
    parsed_[index].add(parse(update), static_cast<std::int64_t>(parsing_[index].num_tokens - before));
  }
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>& timings) override {
    return chat_body(head(), request_, outputs.front(), parsed_, service().model(), timings);
  }

  std::vector<Parsing> parsing_;
  std::vector<ChatOutput> parsed_;  // of a whole answer, by output
};

class EmbeddingGeneration final : public Generation {
 public:
  EmbeddingGeneration(Context context, EmbeddingsRequest request)
      : Generation(std::move(context), {}), request_(std::move(request)) {}

 private:
  OrderedJson body(std::span<const RequestOutput> outputs, const std::optional<Timings>&) override {
    std::vector<std::vector<float>> embeddings;
    for (const RequestOutput& output : outputs) embeddings.push_back(output.embedding);
    return embeddings_body(head().id, head().created, request_, embeddings);
  }

  const EmbeddingsRequest request_;
};

}  // namespace

std::shared_ptr<Generation> make_generation(Generation::Context context, CompletionRequest request) {
  return std::make_shared<CompletionGeneration>(std::move(context), std::move(request));
}

std::shared_ptr<Generation> make_generation(Generation::Context context, ChatRequest request,
                                            std::string_view prompt) {
  return std::make_shared<ChatGeneration>(std::move(context), std::move(request), prompt);
}

std::shared_ptr<Generation> make_generation(Generation::Context context, EmbeddingsRequest request) {
  return std::make_shared<EmbeddingGeneration>(std::move(context), std::move(request));
}

}  // namespace quire::server
