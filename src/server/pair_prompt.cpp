#include "server/pair_prompt.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "server/api_error.h"

namespace quire::server {

std::vector<TokenId> tokenize_pair(const Classifier& classifier, const ScoreRequest& request,
                                   std::size_t document, const ServedModel& model) {
  const Tokenizer& tokenizer = *model.sampling.tokenizer;
  const std::string& own_query = request.queries[request.queries.size() == 1 ? 0 : document];
  ChatRequest chat;
  chat.add_special_tokens = false;  // the template has them
  chat.context["add_generation_prompt"] = false;
  chat.context["messages"] = {
      {{"role", "query"}, {"content", cut_text(own_query, request.max_query_tokens, tokenizer)}},
      {{"role", "document"}, {"content", request.documents[document]}}};
  if (request.instruction) chat.context["instruction"] = *request.instruction;
  auto& text = chat.context["messages"][1]["content"].get_ref<std::string&>();
  text = cut_text(text, request.max_document_tokens, tokenizer);
  std::int64_t left = std::ssize(text);  // tokens of the document, at most
  while (true) {
    const auto pieces = render_chat(chat, *classifier.pair_prompt, std::tm());
    std::vector<TokenId> tokens = tokenize_chat(chat, pieces, model);
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

}  // namespace quire::server
