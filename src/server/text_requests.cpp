#include "server/text_requests.h"

#include <array>

#include "server/api_error.h"
#include "tokenizer/unicode.h"

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

// As llama.cpp's server has it: content, add_special, parse_special, with_pieces.
OrderedJson llama_tokenize_body(const JsonFields& fields, const Tokenizer& tokenizer) {
  const std::array<TextPiece, 1> content = {
      {{fields.required_text("content"), fields.boolean("parse_special").value_or(true)}}};
  const auto ids = tokenizer.encode(content, fields.boolean("add_special").value_or(false));
  if (!fields.boolean("with_pieces").value_or(false)) return {{"tokens", ids}};
  OrderedJson tokens = OrderedJson::array();
  for (const TokenId id : ids) {
    const std::string bytes = tokenizer.token_bytes(id);
    tokens.push_back({{"id", id}, {"piece", bytes}});
    if (!is_valid_utf8(bytes))
      tokens.back()["piece"] = std::vector<unsigned char>(bytes.begin(), bytes.end());
  }
  return {{"tokens", std::move(tokens)}};
}

}  // namespace

OrderedJson tokenize_body(const OrderedJson& body, const ServedModel& model,
                          const std::function<std::vector<TokenId>(const ChatRequest&)>& of_chat) {
  const JsonFields fields(body);
  if (fields.find("content") != nullptr) return llama_tokenize_body(fields, tokenizer_of(model));
  read_model_name(fields, model);
  refuse_token_details(fields);
  std::vector<TokenId> tokens;
  if (const std::string* prompt = fields.text("prompt")) {
    ApiRequest truncation;
    read_truncation(fields, truncation);
    tokens = tokenizer_of(model).encode(*prompt, fields.boolean("add_special_tokens").value_or(true));
    truncate_prompt(tokens, truncation, model);
  } else {
    if (fields.find("messages") == nullptr) refuse("prompt", "or messages is missing");
    const ChatRequest chat = parse_chat_request(body, model);
    tokens = of_chat(chat);
    truncate_prompt(tokens, chat, model);
  }
  OrderedJson texts;
  if (fields.boolean("return_token_strs").value_or(false)) {
    texts = OrderedJson::array();
    for (const TokenId id : tokens) texts.push_back(tokenizer_of(model).id_to_token(id).value_or(""));
  }
  return {{"count", tokens.size()},
          {"max_model_len", model.max_model_len},
          {"tokens", tokens},
          {"token_strs", std::move(texts)}};
}

OrderedJson detokenize_body(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  read_model_name(fields, model);
  const auto tokens = fields.required("tokens", to_token_ids, model.sampling.vocab_size);
  const std::string text = tokenizer_of(model).decode(tokens, false);
  return {{"prompt", text}, {"content", text}};
}

OrderedJson models_body(const std::string& id, const ServedModel& model, std::int64_t created) {
  check_model_name(id, model);
  if (!id.empty()) return model_json(id, model, created);
  OrderedJson data = OrderedJson::array();
  for (const std::string& name : model.names) data.push_back(model_json(name, model, created));
  return {{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace quire::server
