// The endpoints of ApiService whose prompts are not continued.
#include <algorithm>
#include <array>

#include "server/api_error.h"
#include "server/api_service.h"
#include "server/completion.h"
#include "server/pooling.h"

namespace quire::server {
namespace {

void ask_for_labels(const Classifier& classifier, ApiRequest& request) {
  request.pooling = Pooling::kLogits;
  request.dimensions = 0;  // of vectors, not of labels
  request.params.allowed_token_ids = classifier.tokens;
}

// The inputs of a score by embeddings.
std::vector<std::vector<TokenId>> tokenize_texts(const ScoreRequest& request, const ServedModel& model) {
  constexpr const char* kWhy = "says nothing of cosines, which this model's scores are";
  if (request.instruction) refuse("instruction", kWhy);
  if (!request.normalise) refuse("use_activation", kWhy);
  const Tokenizer* tokenizer = model.sampling.tokenizer;
  std::vector<std::vector<TokenId>> inputs;
  const auto add = [&](const std::vector<std::string>& texts, const std::string& field,
                       std::optional<std::int64_t> most) {
    std::vector<Prompt> prompts;
    for (const std::string& text : texts)
      prompts.emplace_back(most && tokenizer ? cut_text(text, most, *tokenizer) : text);
    for (std::vector<TokenId>& input : tokenize_prompts(prompts, true, model)) {
      fit_input(input, request, field, model);
      inputs.push_back(std::move(input));
    }
  };
  add(request.queries, request.query_name, request.max_query_tokens);
  add(request.documents, request.document_name, request.max_document_tokens);
  return inputs;
}

// The tokens of a pair's prompt. To be shorter its document alone is cut. ApiError where it does not fit.
std::vector<TokenId> tokenize_pair(const Classifier& classifier, const ScoreRequest& request,
                                   std::size_t document, const ServedModel& model, const Exchange& exchange) {
  const Tokenizer& tokenizer = *model.sampling.tokenizer;
  const std::string& own_query = request.queries[request.queries.size() == 1 ? 0 : document];
  ChatRequest chat;
  chat.context["add_generation_prompt"] = false;
  chat.context["messages"] = {
      {{"role", "query"}, {"content", cut_text(own_query, request.max_query_tokens, tokenizer)}},
      {{"role", "document"}, {"content", request.documents[document]}}};
  if (request.instruction) chat.context["instruction"] = *request.instruction;
  auto& text = chat.context["messages"][1]["content"].get_ref<std::string&>();
  text = cut_text(text, request.max_document_tokens, tokenizer);
  std::int64_t left = std::ssize(text);  // tokens of the document, at most
  while (true) {
    const auto pieces = render_chat(chat, *classifier.pair_prompt, {{}, [&] { return exchange.is_gone(); }});
    std::vector<TokenId> tokens = tokenizer.encode(pieces, false);  // the template has special tokens
    const auto& kept = request.params.truncate_prompt_tokens;
    const std::int64_t over = kept ? std::ssize(tokens) - *kept : 0;
    if (over <= 0) {
      check_length(std::ssize(tokens), request.document_name, model);
      return tokens;
    }
    const std::array<TextPiece, 1> piece = {{{text, false}}};
    left = std::min(left, std::ssize(tokenizer.encode(piece, false))) - over;
    if (left <= 0)
      refuse("truncate_prompt_tokens", "is {}; the prompt has more without its document, which alone is cut",
             *kept);
    text = cut_text(text, left, tokenizer, request.truncate_right);
  }
}

// A whole answer that a function makes of all outputs.
template <typename Request, typename MakeBody>
class PoolingResponse final : public Response {
 public:
  PoolingResponse(ResponseHead head, Request request, MakeBody make_body)
      : Response(std::move(head), request), request_(std::move(request)), make_body_(std::move(make_body)) {}

  OrderedJson body(Outputs outputs) override { return make_body_(head_, outputs, request_); }

 private:
  const Request request_;
  const MakeBody make_body_;
};

}  // namespace

template <typename Request, typename MakeBody>
void ApiService::pool(const std::shared_ptr<Exchange>& exchange, const char* id_prefix, Request request,
                      std::vector<std::vector<TokenId>> inputs, MakeBody make_body) {
  request.params.truncate_prompt_tokens.reset();  // the inputs are as long as it says
  std::vector<EngineRequest> prompts(inputs.size(), request);
  for (std::size_t i = 0; i < inputs.size(); ++i) prompts[i].prompt = std::move(inputs[i]);
  ResponseHead head = response_head(id_prefix, *exchange, request);
  auto response = std::make_unique<PoolingResponse<Request, MakeBody>>(std::move(head), std::move(request),
                                                                       std::move(make_body));
  generate(exchange, std::move(response), std::move(prompts));
}

void ApiService::embed(const std::shared_ptr<Exchange>& exchange) {
  const std::string_view path = exchange->request().path();
  const bool is_pooling = path == "/pooling", classifies = path == "/classify";
  if (classifies && !classifier_)
    throw ApiError(
        400, "this model is no classifier; classifier_from_token in config.json or --hf-overrides makes one");
  const OrderedJson body = exchange->take_body();
  EmbeddingsRequest request = parse_embeddings_request(body, model_, is_pooling);
  std::vector<std::vector<TokenId>> inputs =
      tokenize_prompts(request.inputs, request.add_special_tokens, model_);
  request.inputs.clear();  // its answer may take long
  if (const auto chat = std::exchange(request.chat, {})) inputs = {chat_tokens(*exchange, *chat)};
  for (std::vector<TokenId>& input : inputs) fit_input(input, request, "input", model_);
  if (classifies) {
    ask_for_labels(*classifier_, request);
    return pool(exchange, "classify-", std::move(request), std::move(inputs),
                [labels = classifier_->labels](const auto& head, auto outputs, const auto& of) {
                  return classify_body(head, outputs, labels, of.normalise);
                });
  }
  request.pooling = options_.pooling;
  pool(exchange, is_pooling ? "pool-" : "embd-", std::move(request), std::move(inputs), embeddings_body);
}

void ApiService::score(const std::shared_ptr<Exchange>& exchange) {
  const bool rerank = exchange->request().path().ends_with("/rerank");
  ScoreRequest request = parse_score_request(exchange->take_body(), model_, rerank);
  const bool of_pairs = classifier_ && classifier_->pair_prompt;
  std::vector<std::vector<TokenId>> inputs;
  if (of_pairs) {
    ask_for_labels(*classifier_, request);
    for (std::size_t i = 0; i < request.documents.size(); ++i)
      inputs.push_back(tokenize_pair(*classifier_, request, i, model_, *exchange));
  } else {
    request.pooling = options_.pooling;
    inputs = tokenize_texts(request, model_);
  }
  request.queries = std::vector<std::string>(request.queries.size());  // only how many they are is answered
  if (!rerank || !request.return_documents) request.documents.clear();
  pool(exchange, rerank ? "rerank-" : "score-", std::move(request), std::move(inputs),
       [of_pairs](const auto& head, auto outputs, const auto& of) {
         return score_body(head, outputs, of, of_pairs);
       });
}

}  // namespace quire::server
