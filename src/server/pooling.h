#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "quire/llm.h"
#include "server/api_response.h"
#include "server/chat_request.h"

namespace quire::server {

// Requests whose prompts are not continued. `normalise` means of logits that they become probabilities.

// POST /v1/embeddings, /pooling and /classify.
struct EmbeddingsRequest : ApiRequest {
  std::optional<ChatRequest> chat;
  std::vector<Prompt> inputs;   // where there is no chat
  std::optional<DType> base64;  // of what; unset: numbers
  bool big_endian = false;
  bool is_pooling = false;  // of /pooling, whose answer has another form
};
EmbeddingsRequest parse_embeddings_request(const OrderedJson& body, const ServedModel& model,
                                           bool is_pooling = false);

// POST /score and /rerank: each document is judged by its query, or all by the only one.
struct ScoreRequest : ApiRequest {
  std::vector<std::string> queries, documents;
  std::string query_name, document_name;                              // the fields that they came in
  std::optional<std::string> instruction;                             // what judging is about
  std::optional<std::int64_t> max_query_tokens, max_document_tokens;  // their first ones
  bool rerank = false;                                                // then the answer is as follows
  std::size_t top_n = 0;                                              // 0: all
  bool return_documents = true;
};
ScoreRequest parse_score_request(const OrderedJson& body, const ServedModel& model, bool rerank);

// Cuts the input where the request says so. ApiError that names the field where it does not fit.
void fit_input(std::vector<TokenId>& tokens, const ApiRequest& request, const std::string& field,
               const ServedModel& model);
// ApiError unless the context and the KV cache hold so many tokens.
void check_length(std::int64_t tokens, const std::string& field, const ServedModel& model);

// The first tokens of a text, or the last ones; unset or 0: all. A character that is cut is left out.
std::string cut_text(const std::string& text, std::optional<std::int64_t> tokens, const Tokenizer& tokenizer,
                     bool keeps_beginning = true);

OrderedJson embeddings_body(const ResponseHead& head, Outputs outputs, const EmbeddingsRequest& request);
// The outputs are the labels' logits.
OrderedJson classify_body(const ResponseHead& head, Outputs outputs, const std::vector<std::string>& labels,
                          bool normalise);
// One output for each document, logits of two labels, the second of which is what is scored; or, not
// `of_logits`, embeddings of length 1: of the queries, then of the documents.
OrderedJson score_body(const ResponseHead& head, Outputs outputs, const ScoreRequest& request,
                       bool of_logits);

}  // namespace quire::server
