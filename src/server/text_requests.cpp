#include "server/text_requests.h"

#include <openssl/evp.h>

#include <bit>
#include <limits>
#include <string_view>

#include "server/api_error.h"

namespace quire::server {
namespace {

const Tokenizer& tokenizer_of(const ServedModel& model) {
  if (model.sampling.tokenizer == nullptr) throw ApiError(400, "this model has no tokenizer");
  return *model.sampling.tokenizer;
}

// Of the values' bytes, little-endian as this machine's.
std::string to_base64(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t bytes = values.size() * sizeof(float);
  std::string text((bytes + 2) / 3 * 4, '\0');  // behind which the library writes a zero, too
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                  reinterpret_cast<const unsigned char*>(values.data()), static_cast<int>(bytes));
  return text;
}

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

EmbeddingsRequest parse_embeddings_request(const OrderedJson& body, const ServedModel& model) {
  const JsonFields fields(body);
  EmbeddingsRequest request;
  request.model = read_model_name(fields, model);
  refuse_unsupported(fields, {"dimensions"});
  check_value(fields, "embed_dtype", {"float32"});
  check_value(fields, "endianness", {"native", "little"});
  check_value(fields, "truncation_side", {"left"});
  for (const char* name : {"normalize", "use_activation"})
    if (!fields.boolean(name).value_or(true)) refuse(name, "{}: false is not supported", name);
  check_value(fields, "encoding_format", {"float", "base64"});
  if (const std::string* format = fields.text("encoding_format")) request.base64 = *format == "base64";
  const OrderedJson& input = fields.required("input");
  const auto kept = fields.integer("truncate_prompt_tokens", -1, std::numeric_limits<int>::max());
  const bool add_special_tokens = fields.boolean("add_special_tokens").value_or(true);
  std::vector<Prompt> inputs = to_prompts(input, "input", model);
  request.inputs = tokenize_prompts(inputs, add_special_tokens, model);
  const std::int64_t max = model.max_model_len;
  for (std::vector<TokenId>& tokens : request.inputs) {
    if (kept == 0)
      refuse("truncate_prompt_tokens", "truncate_prompt_tokens is 0; it must be at least 1, or -1");
    const std::int64_t left = !kept ? std::ssize(tokens) : *kept == -1 ? max : *kept;
    if (std::ssize(tokens) > left) tokens.erase(tokens.begin(), tokens.end() - left);
    if (tokens.empty()) refuse("input", "input has an empty text; at least one token is needed");
    if (std::ssize(tokens) > max) {
      throw ApiError(
          400,
          format_text("This model's maximum context length is {} tokens. However, your input has {}.", max,
                      tokens.size()),
          "input", "context_length_exceeded");
    }
    check_cache_holds(std::ssize(tokens), model);
    request.num_tokens += tokens.size();
  }
  return request;
}

OrderedJson EmbeddingsResponse::body(std::span<const RequestOutput> outputs, const std::optional<Timings>&) {
  OrderedJson data = OrderedJson::array();
  for (const RequestOutput& output : outputs) {
    OrderedJson entry = {{"index", data.size()}, {"object", "embedding"}};
    entry["embedding"] =
        request_.base64 ? OrderedJson(to_base64(output.embedding)) : OrderedJson(output.embedding);
    data.push_back(std::move(entry));
  }
  OrderedJson body = begin_response(head_, "list");
  body["data"] = std::move(data);
  body["usage"] = {{"prompt_tokens", request_.num_tokens}, {"total_tokens", request_.num_tokens}};
  return body;
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
