// The first byte chooses the endpoint, the rest is the body of a request to it. What is accepted is something
// that the engine would take.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/sampling_context.h"
#include "server/api_error.h"
#include "server/chat_request.h"
#include "server/completion.h"
#include "server/llama_completion.h"
#include "server/messages.h"
#include "server/pooling.h"
#include "server/responses.h"
#include "server/text_requests.h"
#include "tokenizer/tiny_tokenizer.h"

namespace {

using quire::server::ServedModel;

const quire::Tokenizer& tokenizer() {
  static const quire::Tokenizer loaded = quire::test::load(quire::test::tiny_tokenizer_json());
  return loaded;
}

ServedModel served_model() {
  ServedModel model;
  static constexpr std::array<quire::TokenId, 1> kEos = {255};
  model.sampling = {.vocab_size = 256, .max_logprobs = 20, .eos_token_ids = kEos, .tokenizer = &tokenizer()};
  model.max_model_len = 256;
  return model;
}

const quire::CheckpointChatTemplate& chat_template() {
  static const quire::CheckpointChatTemplate compiled{
      quire::ChatTemplate("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools }}",
                          "chat_template", {.max_steps = 20'000, .max_output_bytes = 1 << 16}),
      {},
      quire::OrderedJson::object()};
  return compiled;
}

void check(const quire::EngineRequest& request, const ServedModel& model) {
  quire::validate(request.params, model.sampling);
  const auto length = static_cast<std::int64_t>(request.prompt.size());
  if (length == 0 || length + request.params.max_tokens > model.max_model_len) std::abort();
  if (quire::num_sequences(request.params) > model.max_n) std::abort();
}

// What is kept of a request can be read again.
void read_response(quire::OrderedJson body, const ServedModel& model) {
  quire::server::ResponseStore store(1 << 20);
  const std::string id = "resp_0123456789abcdef0123456789abcdef";
  const quire::server::ResponsesContext context{model, store, 0, id};
  const auto request = parse_responses_request(std::move(body), context);
  store.put(id, 0, request.echo, {}, request.input, "[]");
  if (store.find(id, 0) == nullptr) return;
  const quire::OrderedJson next = {{"input", "a"}, {"previous_response_id", id}};
  const auto messages = parse_responses_request(next, context).chat.context["messages"];
  if (messages.back()["content"] != "a") std::abort();
}

void read(std::uint8_t endpoint, std::string_view text) {
  ServedModel model = served_model();
  const quire::OrderedJson body = quire::server::parse_body(text);
  switch (endpoint % 8) {
    case 0: {
      auto completion = parse_completion_request(body, model);
      for (const auto& request : make_engine_requests(completion, model)) check(request, model);
      return;
    }
    case 1: {
      const auto request = parse_chat_request(body, model);
      const auto pieces = render_chat(request, chat_template(), {});
      const auto tokens = tokenizer_of(model).encode(pieces, request.add_special_tokens);
      return check(make_engine_request(request, tokens, model), model);
    }
    case 2:
      model.content_format = quire::server::ContentFormat::kParts;
      tokenize_body(body, model, [](const auto&) { return std::vector<quire::TokenId>(); });
      return;
    case 3:
      parse_embeddings_request(body, model);
      return;
    case 4:
      return read_response(body, model);
    case 5: {
      const auto request = quire::server::parse_messages_request(body, model);
      const auto pieces = quire::server::render_chat(request, chat_template(), {});
      const auto tokens = tokenizer_of(model).encode(pieces, request.add_special_tokens);
      return check(make_engine_request(request, tokens, model), model);
    }
    case 6:
      parse_score_request(body, model, body.contains("query"));
      return;
    default:
      parse_llama_request(body, model);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const quire::server::ApiError& e) {
    if (e.status < 400 || e.status >= 500) std::abort();
    if (std::string_view(e.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
