#pragma once

#include <functional>
#include <span>
#include <utility>

#include "server/api_response.h"
#include "server/pooling_request.h"

namespace quire::server {

// A whole answer that a function makes of all outputs.
class PoolingResponse final : public Response {
 public:
  using Outputs = std::span<const RequestOutput>;
  using MakeBody = std::function<OrderedJson(const ResponseHead& head, Outputs outputs)>;

  PoolingResponse(ResponseHead head, MakeBody make_body)
      : Response(std::move(head)), make_body_(std::move(make_body)) {}

  OrderedJson body(Outputs outputs, const std::optional<Timings>&) override {
    return make_body_(head_, outputs);
  }

 private:
  const MakeBody make_body_;
};

OrderedJson embeddings_body(const ResponseHead& head, PoolingResponse::Outputs outputs,
                            const EmbeddingsRequest& request);
// The outputs are the labels' logits.
OrderedJson classify_body(const ResponseHead& head, PoolingResponse::Outputs outputs,
                          const std::vector<std::string>& labels, bool use_activation);
// One output for each document, logits of two labels, the second of which is what is scored; or, not
// `of_logits`, embeddings of length 1: of the queries, then of the documents.
OrderedJson score_body(const ResponseHead& head, PoolingResponse::Outputs outputs,
                       const ScoreRequest& request, bool of_logits);

}  // namespace quire::server
