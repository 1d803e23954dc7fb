#include <cmath>

#include "response_fixtures.h"
#include "server/pooling.h"

namespace quire::server {
namespace {

using test::head;

// Of an output with that vector, whose prompt has so many tokens.
RequestOutput pooled(std::vector<float> vector, std::size_t tokens = 1) {
  RequestOutput output;
  output.embedding = std::move(vector);
  output.prompt_token_ids.resize(tokens);
  return output;
}

constexpr const char* kUsage =
    R"("usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0,"prompt_tokens_details":{"cached_tokens":0}})";

TEST(EmbeddingsBodyTest, AreNumbersOrBase64) {
  const std::vector<RequestOutput> outputs = {pooled({1, -2}, 2), pooled({0.5F})};
  EmbeddingsRequest request;
  EXPECT_EQ(
      to_line(embeddings_body(head("embd-1"), outputs, request)),
      std::string(
          R"({"id":"embd-1","object":"list","created":1700000000,"model":"toy","data":[)"
          R"({"index":0,"object":"embedding","embedding":[1.0,-2.0]},{"index":1,"object":"embedding","embedding":[0.5]}],)") +
          kUsage + "}");
  const auto base64 = [&](DType dtype, bool big_endian) {
    request.base64 = dtype;
    request.big_endian = big_endian;
    return embeddings_body(head("embd-1"), outputs, request)["data"][0]["embedding"].get<std::string>();
  };
  EXPECT_EQ(base64(DType::kF32, false), "AACAPwAAAMA=");  // 0000803f 000000c0
  EXPECT_EQ(base64(DType::kF32, true), "P4AAAMAAAAA=");   // 3f800000 c0000000
  EXPECT_EQ(base64(DType::kF16, false), "ADwAwA==");      // 003c 00c0
  EXPECT_EQ(base64(DType::kBF16, true), "P4DAAA==");      // 3f80 c000
}

TEST(EmbeddingsBodyTest, PoolingHasNamesOfItsOwn) {
  EmbeddingsRequest request;
  request.is_pooling = true;
  const std::vector<RequestOutput> outputs = {pooled({1})};
  EXPECT_EQ(to_line(embeddings_body(head("pool-1"), outputs, request)["data"]),
            R"([{"index":0,"object":"pooling","data":[1.0]}])");
}

TEST(ClassifyBodyTest, ProbabilitiesAreTheSoftmaxOfTheLogits) {
  const std::vector<RequestOutput> outputs = {pooled({0, std::log(3.0F)}, 2), pooled({1000, -1000})};
  const OrderedJson body = classify_body(head("classify-1"), outputs, {"no", "yes"}, true);
  EXPECT_EQ(body["data"][0]["label"], "yes");
  EXPECT_NEAR(body["data"][0]["probs"][0].get<double>(), 0.25, 1e-7);
  EXPECT_NEAR(body["data"][0]["probs"][1].get<double>(), 0.75, 1e-7);
  EXPECT_EQ(body["data"][0]["num_classes"], 2);
  EXPECT_EQ(to_line(body["data"][1]), R"({"index":1,"label":"no","probs":[1.0,0.0],"num_classes":2})");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(to_line(classify_body(head("x"), outputs, {"no", "yes"}, false)["data"][1]["probs"]),
            "[1000.0,-1000.0]");
}

TEST(ScoreBodyTest, CosinesAreOfOneQueryOrOfEachItsOwn) {
  ScoreRequest request;
  request.queries = {"q"};
  request.documents = {"a", "b"};
  const std::vector<RequestOutput> one = {pooled({1, 0}), pooled({0.6F, 0.8F}), pooled({0, 1})};
  EXPECT_EQ(to_line(score_body(head("score-1"), std::span(one), request, false)["data"]),
            to_line(OrderedJson::array({{{"index", 0}, {"object", "score"}, {"score", double{0.6F}}},
                                        {{"index", 1}, {"object", "score"}, {"score", 0.0}}})));
  EXPECT_EQ(score_body(head("score-1"), one, request, false)["usage"]["prompt_tokens"], 3);
  request.queries = {"p", "q"};
  const std::vector<RequestOutput> two = {pooled({1, 0}), pooled({0, 1}), pooled({1, 0}), pooled({1, 0})};
  const OrderedJson body = score_body(head("score-1"), two, request, false);
  EXPECT_EQ(body["data"][0]["score"], 1.0);
  EXPECT_EQ(body["data"][1]["score"], 0.0);
}

TEST(ScoreBodyTest, LogitsAreAShareOrADifference) {
  ScoreRequest request;
  request.documents = {"a"};
  const std::vector<RequestOutput> outputs = {pooled({0, std::log(3.0F)})};
  const auto score = [&] {
    return score_body(head("s"), outputs, request, true)["data"][0]["score"].get<double>();
  };
  EXPECT_NEAR(score(), 0.75, 1e-7);
  request.normalise = false;
  EXPECT_NEAR(score(), std::log(3.0), 1e-6);
}

TEST(ScoreBodyTest, ARerankIsSortedAndCut) {
  ScoreRequest request;
  request.rerank = true;
  request.documents = {"a", "b", "c"};
  const std::vector<RequestOutput> outputs = {pooled({1000, 0}), pooled({0, 1000}), pooled({1000, 0})};
  EXPECT_EQ(to_line(score_body(head("rerank-1"), outputs, request, true)),
            std::string(R"({"id":"rerank-1","model":"toy",)") + kUsage +
                R"(,"results":[{"index":1,"relevance_score":1.0,"document":{"text":"b"}},)"
                R"({"index":0,"relevance_score":0.0,"document":{"text":"a"}},)"
                R"({"index":2,"relevance_score":0.0,"document":{"text":"c"}}]})");
  request.top_n = 1;
  request.return_documents = false;
  EXPECT_EQ(to_line(score_body(head("rerank-1"), outputs, request, true)["results"]),
            R"([{"index":1,"relevance_score":1.0}])");
  request.top_n = 4;
  EXPECT_EQ(score_body(head("rerank-1"), outputs, request, true)["results"].size(), 3U);
}

}  // namespace
}  // namespace quire::server
