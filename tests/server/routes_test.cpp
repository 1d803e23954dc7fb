// Routes that vLLM's and llama.cpp's clients know, beside completions and chats.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RoutesTest : public ApiServerTest {};

TEST_F(RoutesTest, PingIsHealthByAnyOfItsMethods) {
  ApiServerConfig config = quiet();
  config.api_keys = {"key"};
  listen(config);
  EXPECT_EQ(ask(get("/ping")).status, 503);  // it loads
  load();
  EXPECT_EQ(ask(get("/ping")).status, 200);  // without a key, as probes are
  EXPECT_EQ(ask("/ping", "{}").status, 200);
  const HttpReply refused = ask("PUT /ping HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(refused.status, 405);
  EXPECT_EQ(refused.headers.at("allow"), "GET, POST");
  EXPECT_EQ(ask("/health", "{}").status, 405);
  EXPECT_EQ(ask(get("/load")).status, 401);
  EXPECT_EQ(ask(get("/props")).status, 401);
}

TEST_F(RoutesTest, LoadCountsRequestsUnderWay) {
  StepGate gate(2);
  auto [running, waiting] = run_one(gate, 8, R"({"prompt": "Once", "max_tokens": 3, "ignore_eos": true})");
  EXPECT_EQ(json_of(ask(get("/load")))["server_load"], 2);
  gate.open();
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(waiting.read_reply().status, 200);
  for (int i = 0; i < 500 && json_of(ask(get("/load")))["server_load"] != 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(json_of(ask(get("/load")))["server_load"], 0);
}

TEST_F(RoutesTest, TokenizerInfoIsTheModelsConfigWithItsTemplate) {
  start();
  const OrderedJson info = json_of(ask(get("/tokenizer_info")));
  EXPECT_TRUE(info["chat_template"].is_string());
  EXPECT_TRUE(info["tokenizer_class"].is_string());
}

TEST_F(RoutesTest, TokenizeTruncatesFromEitherSide) {
  start();
  const auto tokens = [&](const std::string& fields) {
    return json_of(ask("/tokenize", R"({"prompt": "one two three four")" + fields + "}"))["tokens"];
  };
  const OrderedJson all = tokens("");
  ASSERT_GT(all.size(), 2U);
  EXPECT_EQ(tokens(R"(, "truncate_prompt_tokens": 2)"),
            OrderedJson(std::vector{all[all.size() - 2], all.back()}));
  EXPECT_EQ(tokens(R"(, "truncate_prompt_tokens": 2, "truncation_side": "right")"),
            OrderedJson(std::vector{all[0], all[1]}));
  EXPECT_EQ(ask("/tokenize", R"({"prompt": "a", "truncate_prompt_tokens": 100000})").status, 400);
}

TEST_F(RoutesTest, TheWholeVocabularyIsReportedWhereTheServerAllowsIt) {
  EngineConfig config = small();
  config.max_logprobs = -1;
  start(config);
  const OrderedJson chat = json_of(ask("/v1/chat/completions", R"({"max_tokens": 2, "logprobs": true,
      "top_logprobs": -1, "temperature": 0, "messages": [{"role": "user", "content": "hi"}]})"));
  const OrderedJson& first = chat["choices"][0]["logprobs"]["content"][0];
  ASSERT_EQ(first["top_logprobs"].size(), static_cast<std::size_t>(service_->model().sampling.vocab_size));
  EXPECT_EQ(first["top_logprobs"][0]["token"], first["token"]);
  double sum = 0;
  for (const OrderedJson& token : first["top_logprobs"]) sum += std::exp(token["logprob"].get<double>());
  EXPECT_NEAR(sum, 1, 1e-3);
  const OrderedJson prompt =
      json_of(ask("/v1/completions", R"({"prompt": [1, 2, 3], "max_tokens": 1, "prompt_logprobs": -1})"));
  EXPECT_EQ(prompt["choices"][0]["prompt_logprobs"][2].size(), first["top_logprobs"].size());
}

TEST_F(RoutesTest, NamedTokensAreReportedInPlaceOfTheMostLikely) {
  start();
  const std::string body =
      R"({"prompt": "Once", "max_tokens": 3, "temperature": 0, "return_tokens_as_token_ids": true,
      "logprobs": 2)";
  const OrderedJson named = json_of(ask("/v1/completions", body + R"(, "logprob_token_ids": [9, 5]})"));
  const OrderedJson top = json_of(ask("/v1/completions", body + "}"));
  const OrderedJson& maps = named["choices"][0]["logprobs"]["top_logprobs"];
  EXPECT_EQ(named["choices"][0]["logprobs"]["token_logprobs"],
            top["choices"][0]["logprobs"]["token_logprobs"]);
  ASSERT_EQ(maps.size(), 3U);
  for (const OrderedJson& map : maps) {
    ASSERT_EQ(map.size(), 3U);
    EXPECT_EQ(std::next(map.begin(), 1).key(), "token_id:9");
    EXPECT_EQ(std::next(map.begin(), 2).key(), "token_id:5");
    EXPECT_LT(map["token_id:9"], 0);
  }
}

TEST_F(RoutesTest, ChatsAndRolesReachTheTemplate) {
  start();
  const OrderedJson rendered =
      json_of(ask("/apply-template", R"({"messages": [{"role": "ipython", "content": "hi"}]})"));
  EXPECT_THAT(rendered["prompt"].get<std::string>(), HasSubstr("ipython"));
  EXPECT_THAT(rendered["prompt"].get<std::string>(), HasSubstr("hi"));
  EXPECT_EQ(json_of(ask("/apply-template", R"({"messages": []})"))["error"]["param"], "messages");
  EXPECT_EQ(ask(get("/slots")).status, 404);
  EXPECT_THAT(error_of(ask(get("/slots"))), HasSubstr("/slots"));
}

TEST_F(RoutesTest, PropsSayHowACompletionIsMade) {
  start();
  const OrderedJson props = json_of(ask(get("/props")));
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], service_->model().max_model_len);
  EXPECT_EQ(props["default_generation_settings"]["params"]["n_predict"], -1);
  EXPECT_EQ(props["total_slots"], service_->model().max_num_seqs);
  EXPECT_EQ(props["model_path"], service_->model().names.front());
  EXPECT_TRUE(props["chat_template"].is_string());
  EXPECT_THAT(props["build_info"].get<std::string>(), StartsWith("quire-"));
}

TEST_F(RoutesTest, LlamaCompletionsAreTheSameTextsAsOurs) {
  start();
  const OrderedJson ours = json_of(
      ask("/v1/completions", R"({"prompt": "Once", "max_tokens": 6, "temperature": 0, "ignore_eos": true})"));
  const std::string body = R"({"prompt": "Once", "n_predict": 6, "temperature": 0, "ignore_eos": true)";
  for (const char* path : {"/completion", "/completions"}) {
    const OrderedJson theirs = json_of(ask(path, body + "}"));
    EXPECT_EQ(theirs["content"], ours["choices"][0]["text"]);
    EXPECT_EQ(theirs["tokens_predicted"], 6);
    EXPECT_EQ(theirs["stop_type"], "limit");
    EXPECT_GT(theirs["timings"]["predicted_ms"], 0);
  }
  EXPECT_GT(json_of(ask("/completion", body + "}"))["tokens_evaluated"], 0);
  const HttpReply streamed = ask("/completion", body + R"(, "stream": true})");
  EXPECT_EQ(streamed.status, 200);
  EXPECT_THAT(streamed.body, HasSubstr(R"("stop":true)"));
  EXPECT_THAT(streamed.body, Not(HasSubstr("[DONE]")));
  EXPECT_THAT(streamed.body, EndsWith("\n\n"));
  EXPECT_EQ(ask("/completion", R"({"prompt": "x", "mirostat": 1})").status, 400);
}

// A long prompt is in the cache after its first time, but not for those who want no part of that.
TEST_F(RoutesTest, APromptMayStandAsideOfTheCache) {
  start();
  const std::string body = R"({"n_predict": 1, "prompt": ")" + std::string(600, 'a') + '"';
  json_of(ask("/completion", body + "}"));
  EXPECT_GT(json_of(ask("/completion", body + "}"))["tokens_cached"], 0);
  for (int i = 0; i < 2; ++i)  // the second time under the same id
    EXPECT_EQ(json_of(ask(post_json("/completion", body + R"(, "cache_prompt": false})",
                                    "X-Request-Id: one\r\n")))["tokens_cached"],
              0);
}

}  // namespace
}  // namespace quire::server
