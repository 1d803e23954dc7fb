#include "server/pooling.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <numeric>
#include <string_view>

#include "server/api_error.h"
#include "server/completion.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxRepeatedBytes = std::size_t{16} << 20;  // of what all prompts of a request repeat
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";         // what a part of a character is decoded to

void read_pooling(const JsonFields& fields, const ServedModel& model, ApiRequest& request) {
  request.model = read_model_name(fields, model);
  refuse_unsupported(fields, {"stream", "mm_processor_kwargs", "media_io_kwargs"});
  fields.choice("padding", {"do_not_pad"});
  read_identity(fields, request);
  read_truncation(fields, request);
  if (auto& kept = request.params.truncate_prompt_tokens) {
    const int max = model.max_model_len;
    if (*kept == 0 || *kept > max)
      refuse("truncate_prompt_tokens",
             "is {}; it must be -1, or 1 to {}. Please request a smaller truncation size.", *kept, max);
    if (*kept == -1) kept = max;
  }
  for (const char* name : {"normalize", "use_activation"})  // of one thing
    if (!fields.boolean(name).value_or(true)) request.normalise = false;
}

void read_encoding(const JsonFields& fields, EmbeddingsRequest& request) {
  const auto dtype = fields.choice("embed_dtype", {"float32", "float16", "bfloat16"}).value_or("float32");
  request.big_endian = fields.choice("endianness", {"native", "little", "big"}) == "big";
  if (fields.choice("encoding_format", {"float", "base64"}) == "base64")
    request.base64 = dtype == "float16" ? DType::kF16 : dtype == "bfloat16" ? DType::kBF16 : DType::kF32;
  else if (const char* name = request.big_endian ? "endianness" : "embed_dtype";
           request.big_endian || dtype != "float32")
    refuse(name, "is of numbers in base64; it needs encoding_format base64");
}

// A text, or an object with one.
std::string to_document(const OrderedJson& value, const std::string& place) {
  if (value.is_string()) return value.get<std::string>();
  const std::string* text = value.is_object() ? JsonFields(value, place).text("text") : nullptr;
  if (text == nullptr)
    refuse(place, "is {}; it must be a text, or an object with a text: {{\"text\": \"...\"}}", shown(value));
  return *text;
}

std::vector<std::string> to_documents(const JsonFields& fields, const std::string& name,
                                      const ServedModel& model) {
  const OrderedJson& value = fields.required(name);
  if (!value.is_array()) return {to_document(value, name)};
  if (value.empty() || value.size() > model.max_prompts)
    refuse(name, "has {} entries; it must have 1 to {}", value.size(), model.max_prompts);
  return to_each(value, name, to_document);
}

void read_pairs(const JsonFields& fields, const ServedModel& model, ScoreRequest& request) {
  const std::string &name = request.query_name, &other = request.document_name;
  request.queries = to_documents(fields, name, model);
  request.documents = to_documents(fields, other, model);
  const std::size_t num_queries = request.queries.size(), num_documents = request.documents.size();
  if (num_queries > 1 && (request.rerank || num_queries != num_documents))
    refuse(name, "has {} entries, and {} {}; it must have one{}", num_queries, other, num_documents,
           request.rerank ? "" : ", or one for each");
  request.instruction = fields.get("instruction", to_text);
  const std::size_t repeated =
      (num_queries == 1 ? request.queries[0].size() : 0) + request.instruction.value_or("").size();
  if (repeated * num_documents > kMaxRepeatedBytes)
    refuse(name, "and instruction have {} bytes, and {} {} entries; at most {} may have so many", repeated,
           other, num_documents, kMaxRepeatedBytes / repeated);
  request.max_query_tokens = fields.integer("max_tokens_per_query", 0, kLargestInt);
  request.max_document_tokens = fields.integer("max_tokens_per_doc", 0, kLargestInt);
}

OrderedJson list_body(const ResponseHead& head, Outputs outputs, OrderedJson data) {
  OrderedJson body = begin_response(head, "list");
  body["data"] = std::move(data);
  body["usage"] = usage_json(usage_of(outputs));
  return body;
}

std::string to_base64(const std::vector<float>& values, DType dtype, bool big_endian) {
  static_assert(std::endian::native == std::endian::little);
  const std::size_t size = size_of(dtype);
  std::vector<unsigned char> bytes(values.size() * size);
  convert(DType::kF32, values.data(), dtype, bytes.data(), values.size());
  for (std::size_t i = 0; big_endian && i < bytes.size(); i += size)
    std::reverse(bytes.data() + i, bytes.data() + i + size);
  std::string text((bytes.size() + 2) / 3 * 4, '\0');  // behind which the library writes a zero, too
  EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), bytes.data(),
                  static_cast<int>(bytes.size()));
  return text;
}

std::vector<double> softmax(const std::vector<float>& logits) {
  const double most = *std::ranges::max_element(logits);
  std::vector<double> shares;
  for (const float logit : logits) shares.push_back(std::exp(logit - most));
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  return shares;
}

std::vector<double> scores_of(Outputs outputs, const ScoreRequest& request, bool of_logits) {
  std::vector<double> scores;
  const Outputs queries = outputs.first(of_logits ? 0 : request.queries.size());
  for (const RequestOutput& output : outputs.subspan(queries.size())) {
    const std::vector<float>& vector = output.embedding;
    if (of_logits) {
      scores.push_back(request.normalise ? softmax(vector)[1] : double{vector[1]} - double{vector[0]});
    } else {
      const auto& query = queries[queries.size() == 1 ? 0 : scores.size()].embedding;
      scores.push_back(std::inner_product(query.begin(), query.end(), vector.begin(), 0.0));
    }
  }
  return scores;
}

}  // namespace

EmbeddingsRequest parse_embeddings_request(const OrderedJson& body, const ServedModel& model,
                                           bool is_pooling) {
  const JsonFields fields(body);
  EmbeddingsRequest request;
  request.is_pooling = is_pooling;
  if (is_pooling) fields.choice("task", {"embed"});
  read_pooling(fields, model, request);
  fields.read("dimensions", request.dimensions, to_integer, 1, model.hidden_size);
  read_encoding(fields, request);
  if (fields.find("input") != nullptr || fields.find("messages") == nullptr) {
    fields.read("add_special_tokens", request.add_special_tokens);
    request.inputs = fields.required("input", to_prompts, model);
    return request;
  }
  OrderedJson chat = body;
  for (const char* name : {"truncation_side", "truncate_prompt_tokens"})
    erase_key(chat, name);  // they are read
  if (fields.find("add_generation_prompt") == nullptr) chat["add_generation_prompt"] = false;
  request.chat = parse_chat_request(chat, model);
  return request;
}

ScoreRequest parse_score_request(const OrderedJson& body, const ServedModel& model, bool rerank) {
  const JsonFields fields(body);
  ScoreRequest request;
  request.truncate_right = true;
  read_pooling(fields, model, request);
  refuse_unsupported(fields,
                     {"chat_template_kwargs", "rank_fields", "max_chunks_per_doc", "return_embeddings"});
  request.rerank = rerank;
  const auto name_of = [&](std::initializer_list<const char*> names) {
    const auto given = std::ranges::find_if(names, [&](const char* name) { return fields.find(name); });
    return given == names.end() ? *names.begin() : *given;
  };
  request.query_name = rerank ? "query" : name_of({"queries", "text_1", "data_1"});
  request.document_name = rerank ? "documents" : name_of({"documents", "items", "text_2", "data_2"});
  read_pairs(fields, model, request);
  fields.read("top_n", request.top_n, to_integer, 0, kLargestInt);
  fields.read("return_documents", request.return_documents);
  return request;
}

void check_length(std::int64_t tokens, const std::string& field, const ServedModel& model) {
  if (tokens > model.max_model_len)
    throw ApiError(
        400,
        format_text("This model's maximum context length is {} tokens. However, your input has {}. "
                    "Please reduce the length of the input prompt.",
                    model.max_model_len, tokens),
        field, "context_length_exceeded");
  check_cache_holds(tokens, model);
}

void fit_input(std::vector<TokenId>& tokens, const ApiRequest& request, const std::string& field,
               const ServedModel& model) {
  truncate_prompt(tokens, request, model);
  if (tokens.empty()) refuse(field, "has an empty text; at least one token is needed");
  check_length(std::ssize(tokens), field, model);
}

std::string cut_text(const std::string& text, std::optional<std::int64_t> tokens, const Tokenizer& tokenizer,
                     bool keeps_beginning) {
  if (tokens.value_or(0) == 0) return text;
  const std::array<TextPiece, 1> piece = {{{text, false}}};
  std::vector<TokenId> ids = tokenizer.encode(piece, false);
  if (std::ssize(ids) <= *tokens) return text;
  cut_tokens(ids, *tokens, keeps_beginning);
  std::string cut = tokenizer.decode(ids, false);
  while (keeps_beginning && cut.ends_with(kReplacement)) cut.resize(cut.size() - kReplacement.size());
  while (!keeps_beginning && cut.starts_with(kReplacement)) cut.erase(0, kReplacement.size());
  return cut;
}

OrderedJson embeddings_body(const ResponseHead& head, Outputs outputs, const EmbeddingsRequest& request) {
  OrderedJson data = OrderedJson::array();
  for (const RequestOutput& output : outputs) {
    OrderedJson vector = request.base64
                             ? OrderedJson(to_base64(output.embedding, *request.base64, request.big_endian))
                             : OrderedJson(output.embedding);
    data.push_back({{"index", data.size()},
                    {"object", request.is_pooling ? "pooling" : "embedding"},
                    {request.is_pooling ? "data" : "embedding", std::move(vector)}});
  }
  return list_body(head, outputs, std::move(data));
}

OrderedJson classify_body(const ResponseHead& head, Outputs outputs, const std::vector<std::string>& labels,
                          bool normalise) {
  OrderedJson data = OrderedJson::array();
  for (const RequestOutput& output : outputs) {
    const std::vector<float>& logits = output.embedding;
    data.push_back({{"index", data.size()},
                    {"label", labels.at(std::ranges::max_element(logits) - logits.begin())},
                    {"probs", normalise ? OrderedJson(softmax(logits)) : OrderedJson(logits)},
                    {"num_classes", logits.size()}});
  }
  return list_body(head, outputs, std::move(data));
}

OrderedJson score_body(const ResponseHead& head, Outputs outputs, const ScoreRequest& request,
                       bool of_logits) {
  const std::vector<double> scores = scores_of(outputs, request, of_logits);
  OrderedJson list = OrderedJson::array();
  if (!request.rerank) {
    for (const double score : scores)
      list.push_back({{"index", list.size()}, {"object", "score"}, {"score", score}});
    return list_body(head, outputs, std::move(list));
  }
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](std::size_t i) { return scores[i]; });
  if (request.top_n > 0) order.resize(std::min(order.size(), request.top_n));
  for (const std::size_t i : order) {
    list.push_back({{"index", i}, {"relevance_score", scores[i]}});
    if (request.return_documents) list.back()["document"] = {{"text", request.documents[i]}};
  }
  return {{"id", head.id},
          {"model", head.model},
          {"usage", usage_json(usage_of(outputs))},
          {"results", std::move(list)}};
}

}  // namespace quire::server
