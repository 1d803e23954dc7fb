#include "server/pooling_response.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace quire::server {
namespace {

using Outputs = PoolingResponse::Outputs;

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
      scores.push_back(request.use_activation ? softmax(vector)[1] : double{vector[1]} - double{vector[0]});
    } else {
      const auto& query = queries[queries.size() == 1 ? 0 : scores.size()].embedding;
      scores.push_back(std::inner_product(query.begin(), query.end(), vector.begin(), 0.0));
    }
  }
  return scores;
}

}  // namespace

OrderedJson embeddings_body(const ResponseHead& head, Outputs outputs, const EmbeddingsRequest& request) {
  OrderedJson data = OrderedJson::array();
  for (const RequestOutput& output : outputs) {
    OrderedJson vector = request.base64
                             ? OrderedJson(to_base64(output.embedding, *request.base64, request.big_endian))
                             : OrderedJson(output.embedding);
    data.push_back({{"index", data.size()},
                    {"object", request.pooling ? "pooling" : "embedding"},
                    {request.pooling ? "data" : "embedding", std::move(vector)}});
  }
  return list_body(head, outputs, std::move(data));
}

OrderedJson classify_body(const ResponseHead& head, Outputs outputs, const std::vector<std::string>& labels,
                          bool use_activation) {
  OrderedJson data = OrderedJson::array();
  for (const RequestOutput& output : outputs) {
    const std::vector<float>& logits = output.embedding;
    data.push_back({{"index", data.size()},
                    {"label", labels.at(std::ranges::max_element(logits) - logits.begin())},
                    {"probs", use_activation ? OrderedJson(softmax(logits)) : OrderedJson(logits)},
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
