// Requests that want to break the engine behind the server: each is answered, and the next one is served.
#include <gmock/gmock.h>

#include <array>

#include "server/api_server_fixture.h"
#include "server/prometheus_parser.h"

namespace quire::server {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::array<const char*, 46> kFields = {"n",
                                                 "best_of",
                                                 "max_tokens",
                                                 "max_completion_tokens",
                                                 "min_tokens",
                                                 "temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "min_p",
                                                 "seed",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "repetition_penalty",
                                                 "length_penalty",
                                                 "logprobs",
                                                 "top_logprobs",
                                                 "prompt_logprobs",
                                                 "priority",
                                                 "truncate_prompt_tokens",
                                                 "stop",
                                                 "stop_token_ids",
                                                 "allowed_token_ids",
                                                 "bad_words",
                                                 "logit_bias",
                                                 "stream",
                                                 "stream_options",
                                                 "echo",
                                                 "ignore_eos",
                                                 "use_beam_search",
                                                 "early_stopping",
                                                 "skip_special_tokens",
                                                 "include_stop_str_in_output",
                                                 "add_special_tokens",
                                                 "cache_salt",
                                                 "request_id",
                                                 "model",
                                                 "user",
                                                 "return_token_ids",
                                                 "timings",
                                                 "tools",
                                                 "tool_choice",
                                                 "response_format",
                                                 "chat_template_kwargs",
                                                 "continue_final_message",
                                                 "add_generation_prompt",
                                                 "include_reasoning"};
constexpr std::array<const char*, 18> kValues = {
    "-1",    "0",      "1",     "2",      "17",         "-0.0",
    "0.5",   "1e-300", "1e308", "-1e308", "2147483648", "9223372036854775808",
    "\"x\"", "null",   "true",  "[]",     "[0, -1]",    "{\"x\": 1e308}"};

class HostileRequestTest : public ApiServerTest {
 protected:
  void SetUp() override {
    EngineConfig config = small();
    config.max_model_len = 128;  // what asks for no end has one
    start(config);
    expected_ = canary();
  }
  void TearDown() override {
    EXPECT_EQ(canary(), expected_);
    EXPECT_TRUE(becomes_true([&] { return all_blocks_free(); }));
    server_.reset();
  }
  std::string canary() {
    const HttpReply reply = ask(
        "/v1/chat/completions",
        R"({"messages": [{"role": "user", "content": "What is Quire?"}], "temperature": 0, "max_tokens": 20})");
    return json_of(reply).at("choices")[0]["message"]["content"].get<std::string>();
  }
  // One connection for all: none of them may cost it.
  void sweep(const char* path, const std::string& fields) {
    HttpClient client = connect();
    for (const char* field : kFields) {
      for (const char* value : kValues) {
        const std::string body = "{\"" + std::string(field) + "\": " + value + ", " + fields + "}";
        ASSERT_TRUE(client.send(post_json(path, body)));
        const HttpReply reply = client.read_reply();
        EXPECT_THAT(reply.status, AnyOf(200, 400, 404)) << body << "\n" << reply.body;
        EXPECT_EQ(reply.status == 404, std::string_view(field) == "model" && reply.status != 200 &&
                                           std::string_view(value) == "\"x\"")
            << body << "\n"
            << reply.body;
        if (reply.status == 400) {
          EXPECT_EQ(json_of(reply)["error"]["param"].is_null(), false) << body << "\n" << reply.body;
        }
      }
    }
  }

  std::string expected_;
};

TEST_F(HostileRequestTest, EveryFieldOfCompletionsTakesEveryValue) {
  sweep("/v1/completions", R"("prompt": "a b c")");
}

TEST_F(HostileRequestTest, EveryFieldOfChatsTakesEveryValue) {
  sweep("/v1/chat/completions", R"("messages": [{"role": "user", "content": "hi"}])");
}

std::string repeated(const std::string& piece, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += piece;
  return text;
}

TEST_F(HostileRequestTest, BombsAreRefused) {
  const std::vector<std::string> bombs = {
      R"({"prompt": )" + repeated("[", 100'000),
      R"({"prompt": )" + repeated("[", 100'000) + repeated("]", 100'000) + "}",
      R"({"prompt": [)" + repeated("\"a\",", 100'000) + R"("a"]})",
      R"({"prompt": [)" + repeated("[1],", 100'000) + R"([1]]})",
      R"({"prompt": [)" + repeated("1,", 1'000'000) + "1]}",
      R"({"prompt": ")" + repeated("bomb ", 1'000'000) + "\"}",
      R"({"prompt": "a", "n": 1000000000})",
      R"({"prompt": "a", "best_of": 1000000000})",
      R"({"prompt": "a", "logprobs": 1000000000})",
      R"({"prompt": "a", "stop": [)" + repeated("\"b\",", 100'000) + R"("b"]})",
      R"({"prompt": "a", "stop": ")" + repeated("b", 1'000'000) + "\"}",
      R"({"prompt": "a", "bad_words": [)" + repeated("\"b\",", 100'000) + R"("b"]})",
      R"({"prompt": "a", "stop_token_ids": [)" + repeated("1,", 100'000) + "1]}",
      R"({"prompt": "a", "allowed_token_ids": [99999999999]})",
      R"({"prompt": "a", "max_tokens": 2147483647})",
      R"({"prompt": "a", "cache_salt": ")" + repeated("s", 100'000) + "\"}",
      R"({"prompt": "\ud800"})",
      "{\"prompt\": \"\xff\xfe\"}",
  };
  for (const std::string& bomb : bombs) {
    const HttpReply reply = ask("/v1/completions", bomb);
    EXPECT_EQ(reply.status, 400) << bomb.substr(0, 100);
    EXPECT_LT(reply.body.size(), 1000U) << bomb.substr(0, 100);
  }
}

TEST_F(HostileRequestTest, RulingOutEveryTokenIsAnErrorOfTheRequestAlone) {
  const Tokenizer& tokenizer = engine_->tokenizer();
  const std::string a = std::to_string(tokenizer.encode("a", false).at(0));
  const std::string eos = std::to_string(engine_->sampling_context().eos_token_ids.front());
  const std::vector<std::pair<std::string, const char*>> known_before = {
      {R"("allowed_token_ids": [)" + a + R"(], "bad_words": ["a"])", "allowed_token_ids and bad_words"},
      {R"("allowed_token_ids": [)" + eos + R"(], "min_tokens": 2)", "allowed_token_ids and min_tokens"}};
  for (const char* stream : {"false", "true"}) {
    const std::string begin = R"({"prompt": "x", "max_tokens": 9, "stream": )" + std::string(stream) + ", ";
    for (const auto& [fields, names] : known_before) {
      const HttpReply reply = ask("/v1/completions", begin + fields + "}");
      EXPECT_EQ(reply.status, 400) << reply.body;
      EXPECT_THAT(error_of(reply), HasSubstr(names));
      EXPECT_EQ(json_of(reply)["error"]["param"], "allowed_token_ids");
    }
  }
  // The first a may come, the second may not: "aa" is not one token.
  ASSERT_EQ(tokenizer.encode("aa", false).size(), 2U);
  const std::string later = R"("allowed_token_ids": [)" + a + R"(], "bad_words": ["aa"]})";
  const HttpReply whole = ask("/v1/completions", R"({"prompt": "x", "max_tokens": 9, )" + later);
  EXPECT_EQ(whole.status, 400);
  EXPECT_EQ(error_of(whole),
            "allowed_token_ids and bad_words leave no token that could be number 2 of the output");
  HttpClient client = connect();
  client.send(post_json("/v1/completions", R"({"prompt": "x", "max_tokens": 9, "stream": true, )" + later));
  const HttpReply streamed = client.read_reply();
  EXPECT_EQ(streamed.status, 200);
  EXPECT_THAT(streamed.body, HasSubstr(R"("text":"a")"));
  EXPECT_THAT(streamed.body, HasSubstr("leave no token that could be number 2"));
  EXPECT_THAT(streamed.body, HasSubstr(R"("code":400)"));
  const std::string metrics = ask("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").body;
  const server::test::Scrape found = server::test::PrometheusParser(metrics).parse();
  EXPECT_EQ(found.value("vllm:corrupted_requests_total"), 0);
  EXPECT_EQ(found.value("vllm:request_success_total", {{"finished_reason", "error"}}), 2);
}

TEST_F(HostileRequestTest, ABodyOverTheLimitIsRefusedWhileItComes) {
  HttpClient client = connect();
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "100000\r\n" + std::string(1 << 20, ' ') + "\r\n";
  int sent = 0;
  while (sent < 64 && client.send(chunk)) ++sent;
  EXPECT_EQ(client.read_reply().status, 413);
}

}  // namespace
}  // namespace quire::server
