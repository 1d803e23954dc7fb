// Pooling over HTTP, with the bundled model, which is a Qwen3.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "api_server_fixture.h"
#include "base/format.h"
#include "expect_error.h"
#include "temp_dir.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

constexpr const char* kQwen3 =
    R"({"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["No", "Yes"],
        "is_original_qwen3_reranker": true})";

class PoolingServerTest : public ApiServerTest {
 protected:
  void start_with(const std::string& overrides, const std::string& model = {}) {
    ServiceOptions options;
    options.hf_overrides = overrides;
    EngineConfig config = small();
    config.model = model;
    config.dtype = "float32";
    listen();
    load(config, {}, options);
  }
  OrderedJson answer(std::string_view path, const std::string& body) const {
    const HttpReply reply = ask(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply);
  }
  std::string refused(std::string_view path, const std::string& body) const {
    const HttpReply reply = ask(path, body);
    EXPECT_EQ(reply.status, 400) << reply.body;
    const OrderedJson param = json_of(reply)["error"]["param"];
    return param.is_null() ? error_of(reply) : param.get<std::string>();
  }
  double share(const std::string& document, const std::string& more = "") const {
    return answer("/score",
                  format_text(R"({{"queries": "What is a cat?", "documents": "{}"{}}})", document, more))
        .at("data")[0]["score"]
        .get<double>();
  }
  // The bundled model with another template or other fields of config.json.
  std::string changed_model(const std::string& chat_template, const OrderedJson& fields) {
    const std::filesystem::path directory = temporary_.path() / "model";
    std::filesystem::copy(find_model_directory(""), directory);
    if (!chat_template.empty()) std::ofstream(directory / "chat_template.jinja") << chat_template;
    std::ifstream file(directory / "config.json");
    OrderedJson config = OrderedJson::parse(file);
    config.update(fields);
    std::filesystem::remove(directory / "config.json");
    std::ofstream(directory / "config.json") << config;
    return directory.string();
  }

  TempDir temporary_;
};

// References: transformers in float32, its prompt tokenized in the three parts that Qwen3-Reranker's authors
// publish.
TEST_F(PoolingServerTest, Qwen3RerankersScoreAsTransformers) {
  start_with(kQwen3);
  EXPECT_NEAR(share("A cat is an animal."), 0.9325454, 2e-5);
  EXPECT_NEAR(share("zzz"), 0.2334527, 2e-5);
  EXPECT_NEAR(share("A cat is an animal.", R"(, "instruction": "Judge.")"), 0.8075774, 2e-5);
  const OrderedJson body =
      answer("/v2/rerank", R"({"query": "What is a cat?", "documents": ["zzz", "A cat is an animal.",
             {"text": "Paris is big."}], "instruction": "Judge.", "top_n": 2})");
  EXPECT_EQ(body["results"][0]["index"], 1);
  EXPECT_EQ(body["results"][1]["index"], 2);
  EXPECT_NEAR(body["results"][1]["relevance_score"].get<double>(), 0.3697980, 2e-5);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 104 + 103 + 100);
  const OrderedJson classified = answer("/classify", R"({"input": ["hi", "the end"]})")["data"];
  EXPECT_EQ(classified[0]["label"], "No");
  EXPECT_NEAR(classified[0]["probs"][1].get<double>(), 0.0381651, 2e-5);
  EXPECT_NEAR(classified[1]["probs"][1].get<double>(), 0.6244155, 2e-5);
  EXPECT_TRUE(all_blocks_free());
}

TEST_F(PoolingServerTest, ALongDocumentIsCutAndNothingElse) {
  start_with(kQwen3);
  std::string words;
  for (int i = 0; i < 2000; ++i) words += "cat ";
  const auto body = [&](const std::string& document, const std::string& more) {
    return format_text(R"({{"query": "What is a cat?", "documents": ["{}"]{}}})", document, more);
  };
  const auto score_of = [](const OrderedJson& answered) {
    return answered["results"][0]["relevance_score"].get<double>();
  };
  const OrderedJson cut = answer("/rerank", body(words, R"(, "truncate_prompt_tokens": 200)"));
  const int used = cut["usage"]["prompt_tokens"].get<int>();
  EXPECT_LE(used, 200);
  EXPECT_GT(used, 190);
  // So many words of it fit: the prompt's end is there.
  bool found = false;
  for (std::size_t bytes = 4; bytes < 900 && !found; ++bytes) {
    const OrderedJson whole = answer("/rerank", body(words.substr(0, bytes), ""));
    found = whole["usage"]["prompt_tokens"] == used && std::abs(score_of(whole) - score_of(cut)) < 1e-5;
  }
  EXPECT_TRUE(found);
  EXPECT_LE(answer("/rerank", body(words, R"(, "max_tokens_per_doc": 5)"))["usage"]["prompt_tokens"], 125);
  EXPECT_EQ(refused("/rerank", body(words, "")), "documents");
  EXPECT_EQ(refused("/rerank", body(words, R"(, "truncate_prompt_tokens": 100)")), "truncate_prompt_tokens");
}

TEST_F(PoolingServerTest, ACheckpointSaysThatItIsAClassifierAndHowItAsks) {
  const OrderedJson fields = {{"architectures", OrderedJson::array({"Qwen3ForSequenceClassification"})},
                              {"classifier_from_token", OrderedJson::array({"No", "Yes"})}};
  start_with("", changed_model("{% for m in messages %}{% if m.role == 'query' %}{{ m.content }}: "
                               "{% elif m.role == 'document' %}{{ m.content }}{% endif %}{% endfor %}",
                               fields));
  const double score = share("zzz");
  const OrderedJson probabilities =
      answer("/classify", R"({"input": "What is a cat?: zzz"})")["data"][0]["probs"];
  EXPECT_DOUBLE_EQ(score, probabilities[1].get<double>());
}

TEST_F(PoolingServerTest, WithoutAPromptForPairsScoresAreCosines) {
  start_with(R"({"classifier_from_token": ["No", "Yes"]})");
  const OrderedJson one = answer("/classify", R"({"input": "hi"})")["data"][0];
  EXPECT_EQ(one["num_classes"], 2);
  EXPECT_EQ(answer("/classify", R"({"input": "hi", "dimensions": 1})")["data"][0], one);
  EXPECT_NEAR(share("What is a cat?"), 1, 1e-5);
}

TEST_F(PoolingServerTest, CosinesAreOfEmbeddings) {
  start_with("");
  const OrderedJson vectors = answer("/v1/embeddings", R"({"input": ["What is a cat?", "zzz"]})")["data"];
  double cosine = 0;
  for (std::size_t i = 0; i < vectors[0]["embedding"].size(); ++i)
    cosine += vectors[0]["embedding"][i].get<double>() * vectors[1]["embedding"][i].get<double>();
  EXPECT_NEAR(share("zzz"), cosine, 1e-5);
  const OrderedJson pairs =
      answer("/v1/score", R"({"text_1": ["zzz", "a"], "text_2": ["zzz", "What is a cat?"]})")["data"];
  EXPECT_NEAR(pairs[0]["score"].get<double>(), 1, 1e-5);
  EXPECT_LT(pairs[1]["score"].get<double>(), 0.99);
  EXPECT_EQ(refused("/rerank", R"({"query": "q", "documents": ["a"], "instruction": "i"})"), "instruction");
  EXPECT_EQ(refused("/rerank", R"({"query": "q", "documents": ["a"], "use_activation": false})"),
            "use_activation");
  EXPECT_THAT(refused("/classify", R"({"input": "hi"})"), HasSubstr("classifier_from_token"));
}

TEST_F(PoolingServerTest, MessagesArePooledAsTheirPrompt) {
  start_with("");
  constexpr const char* kMessages = R"("messages": [{"role": "user", "content": "hi"}])";
  const auto embed = [&](const std::string& fields) {
    return answer("/v1/embeddings", "{" + fields + "}")["data"][0]["embedding"];
  };
  EXPECT_EQ(embed(kMessages),
            embed(R"("input": "<|im_start|>user\nhi<|im_end|>\n", "add_special_tokens": false)"));
  EXPECT_EQ(
      embed(std::string(kMessages) + R"(, "add_generation_prompt": true)"),
      embed(
          R"("input": "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "add_special_tokens": false)"));
}

TEST_F(PoolingServerTest, AThousandPairsAreOneRequestThatCounts) {
  start_with("");
  OrderedJson documents = OrderedJson::array();
  for (int i = 0; i < 1024; ++i) documents.push_back(format_text("document {}", i));
  OrderedJson body = {{"query", "document 7"}, {"documents", documents}, {"top_n", 1}};
  const OrderedJson answered = answer("/v1/rerank", body.dump());
  EXPECT_EQ(answered["results"][0]["index"], 7);
  const auto told = [&](const std::string& line) {
    return becomes_true([&] {  // which it is once the answer is sent
      return ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").body.find(line) != std::string::npos;
    });
  };
  EXPECT_TRUE(told(R"(http_requests_total{handler="/v1/rerank",method="POST",status="2xx"} 1)"));
  EXPECT_TRUE(told(format_text(R"(vllm:prompt_tokens_total{{engine="0",model_name="toy"}} {}.0)",
                               answered["usage"]["prompt_tokens"].get<int>())));
  body["documents"].push_back("one more");
  EXPECT_EQ(refused("/v1/rerank", body.dump()), "documents");
}

TEST_F(PoolingServerTest, WhatMakesNoClassifierIsRefusedByName) {
  const Engine engine(small());
  for (const auto& [overrides, why] :
       {std::pair{R"(3)", "--hf-overrides"},
        {R"({"num_labels": 1})", "\"num_labels\" is not supported"},
        {R"({"architectures": ["LlamaForSequenceClassification"], "classifier_from_token": ["No", "Yes"]})",
         "architectures"},
        {R"({"classifier_from_token": ["No"]})", "classifier_from_token"},
        {R"({"classifier_from_token": ["No", "unheard of"]})", "each label must be one"},
        {R"({"is_original_qwen3_reranker": true})", "classifier_from_token"}}) {
    ServiceOptions options;
    options.hf_overrides = overrides;
    expect_error(
        [&] {
          check_options(options);
          find_classifier(engine, options.hf_overrides, nullptr);
        },
        {why});
  }
}

}  // namespace
}  // namespace quire::server
