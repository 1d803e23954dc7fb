#include "server/text_requests.h"

#include <string_view>

#include "server/api_error.h"

namespace quire::server {
namespace {

OrderedJson model_json(const std::string& id, const ServedModel& model, std::int64_t created) {
  return {{"id", id},
          {"object", "model"},
          {"created", created},
          {"owned_by", "quire"},
          {"root", id},
          {"parent", nullptr},
          {"max_model_len", model.max_model_len},
          {"permission", OrderedJson::array()}};
}

}  // namespace

TokenizeRequest parse_tokenize_request(const OrderedJson& body, const ServedModel& model,
                                       ContentFormat format) {
  const JsonFields fields(body);
  TokenizeRequest request;
  read_model_name(fields, model);
  refuse_token_details(fields);
  fields.read("return_token_strs", request.return_token_strs);
  if (const std::string* prompt = fields.text("prompt")) {
    request.prompt = *prompt;
    fields.read("add_special_tokens", request.add_special_tokens);
    read_truncation(fields, request.truncation);
  } else if (fields.find("messages") != nullptr) {
    request.chat = parse_chat_request(body, model, format);
    request.add_special_tokens = request.chat->add_special_tokens;
  } else {
    refuse("prompt", "prompt or messages is missing");
  }
  return request;
}

OrderedJson tokenize_body(const TokenizeRequest& request, const std::vector<TokenId>& tokens,
                          const ServedModel& model) {
  OrderedJson texts;
  if (request.return_token_strs) {
    texts = OrderedJson::array();
    for (const TokenId id : tokens) texts.push_back(tokenizer_of(model).id_to_token(id).value_or(""));
  }
  return {{"count", tokens.size()},
          {"max_model_len", model.max_model_len},
          {"tokens", tokens},
          {"token_strs", std::move(texts)}};
}

std::vector<TokenId> parse_detokenize_request(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  read_model_name(fields, model);
  return to_token_ids(fields.required("tokens"), "tokens", model.sampling.vocab_size);
}

OrderedJson detokenize_body(const std::vector<TokenId>& tokens, const ServedModel& model) {
  const std::string text = tokenizer_of(model).decode(tokens, false);
  return {{"prompt", text}, {"content", text}};
}

OrderedJson models_body(const ServedModel& model, std::int64_t created) {
  OrderedJson data = OrderedJson::array();
  for (const std::string& name : model.names) data.push_back(model_json(name, model, created));
  return {{"object", "list"}, {"data", std::move(data)}};
}

OrderedJson model_body(const std::string& id, const ServedModel& model, std::int64_t created) {
  check_model_name(id, model);
  return model_json(id, model, created);
}

}  // namespace quire::server
