#include "server/generations.h"

#include <utility>

namespace quire::server {

CompletionGeneration::CompletionGeneration(std::shared_ptr<ApiService> service,
                                           std::shared_ptr<Exchange> exchange, ResponseHead head,
                                           CompletionRequest request)
    : Generation(std::move(service), std::move(exchange), {request.stream, request.timings}),
      head_(std::move(head)),
      request_(std::move(request)),
      stream_(head_, request_, this->service().model()) {}

std::vector<OrderedJson> CompletionGeneration::chunks(std::size_t prompt, const RequestUpdate& update) {
  std::vector<OrderedJson> chunks;
  if (auto chunk = stream_.chunk(prompt, update)) chunks.push_back(std::move(*chunk));
  return chunks;
}

std::optional<OrderedJson> CompletionGeneration::last_chunk(const std::optional<Timings>& timings) {
  return stream_.last(timings);
}

OrderedJson CompletionGeneration::body(std::span<const RequestOutput> outputs,
                                       const std::optional<Timings>& timings) {
  return completion_body(head_, request_, outputs, service().model(), timings);
}

ChatGeneration::ChatGeneration(std::shared_ptr<ApiService> service, std::shared_ptr<Exchange> exchange,
                               ResponseHead head, ChatRequest request, std::string_view prompt)
    : Generation(std::move(service), std::move(exchange), {request.stream, request.timings}),
      head_(std::move(head)),
      request_(std::move(request)),
      stream_(head_, request_, this->service().model()) {
  OutputFormat format = this->service().output_format();
  if (!request_.parse_tools) format.tool_calls.reset();
  const ToolParserOptions options{.parallel_tool_calls = !request_.one_tool_call, .new_id = {}};
  const auto n = static_cast<std::size_t>(request_.params.n);
  for (std::size_t i = 0; i < n; ++i) parsing_.push_back({make_output_parser(format, prompt, options), 0});
  parsed_.resize(n);
}

OutputDelta ChatGeneration::parse(const RequestUpdate& update) {
  OutputParser& parser = *parsing_[static_cast<std::size_t>(update.output.index)].parser;
  OutputDelta delta = parser.parse(update.new_text);
  if (update.output.finished()) append(delta, parser.finish());
  return delta;
}

std::vector<OrderedJson> ChatGeneration::chunks(std::size_t, const RequestUpdate& update) {
  return stream_.chunks(update, parse(update));
}

std::optional<OrderedJson> ChatGeneration::last_chunk(const std::optional<Timings>& timings) {
  return stream_.last(timings);
}

void ChatGeneration::take(const RequestUpdate& update) {
  const auto index = static_cast<std::size_t>(update.output.index);
  const std::size_t before = std::exchange(parsing_[index].num_tokens, update.output.token_ids.size());
  parsed_[index].add(parse(update), static_cast<std::int64_t>(parsing_[index].num_tokens - before));
}

OrderedJson ChatGeneration::body(std::span<const RequestOutput> outputs,
                                 const std::optional<Timings>& timings) {
  return chat_body(head_, request_, outputs.front(), parsed_, service().model(), timings);
}

EmbeddingGeneration::EmbeddingGeneration(std::shared_ptr<ApiService> service,
                                         std::shared_ptr<Exchange> exchange, ResponseHead head,
                                         EmbeddingsRequest request)
    : Generation(std::move(service), std::move(exchange), {}),
      head_(std::move(head)),
      request_(std::move(request)) {}

OrderedJson EmbeddingGeneration::body(std::span<const RequestOutput> outputs, const std::optional<Timings>&) {
  std::vector<std::vector<float>> embeddings;
  for (const RequestOutput& output : outputs) embeddings.push_back(output.embedding);
  return embeddings_body(head_.id, head_.created, request_, embeddings);
}

}  // namespace quire::server
