#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

constexpr const char* kSeven = R"({"prompt": "a", "max_tokens": 7, "ignore_eos": true, "stream": true)";

// What flags of `quire serve` change in answers.
class ServeOptionsTest : public ApiServerTest {
 protected:
  void serve(const ServiceOptions& options, const EngineConfig& config = small()) {
    listen();
    load(config, {}, options);
  }
  void serve(AnswerDefaults answers, const EngineConfig& config = small()) {
    ServiceOptions options;
    options.answers = std::move(answers);
    serve(options, config);
  }
  std::string rendered(const std::string& fields) {
    const OrderedJson tokens = json_of(ask("/tokenize", "{" + fields + "}")).at("tokens");
    return json_of(ask("/detokenize", OrderedJson({{"tokens", tokens}}).dump())).at("prompt");
  }
  // The last chunk of a stream.
  OrderedJson last_chunk(const std::string& more) {
    const std::string body = ask("/v1/completions", kSeven + more + "}").body;
    const std::size_t end = body.rfind("\n\ndata: [DONE]");
    const std::size_t begin = body.rfind("data: ", end) + 6;
    return OrderedJson::parse(body.substr(begin, end - begin));
  }
};

TEST_F(ServeOptionsTest, PathsAreServedWithTheProxysPrefixAndWithout) {
  ApiServerConfig config = quiet();
  config.root_path = "/a/b";
  listen(config);
  load();
  for (const char* path : {"/health", "/a/b/health", "/a/b/v1/models?x=1", "/a/b/v1/models/toy"})
    EXPECT_EQ(ask(get(path)).status, 200) << path;
  EXPECT_EQ(ask("/a/b/tokenize", R"({"prompt": "a"})").status, 200);
  for (const char* path : {"/a/bhealth", "/a/health", "/a/b", "/a/b/a/b/health"})
    EXPECT_EQ(ask(get(path)).status, 404) << path;
}

TEST_F(ServeOptionsTest, APrefixMayBeginAsThePathsDo) {
  ApiServerConfig config = quiet();
  config.root_path = "/v1";
  listen(config);
  load();
  for (const char* path : {"/v1/models", "/v1/models/toy", "/v1/v1/models", "/v1/health", "/health"})
    EXPECT_EQ(ask(get(path)).status, 200) << path;
}

TEST_F(ServeOptionsTest, APrefixOpensNothingThatNeedsAKey) {
  ApiServerConfig config = quiet();
  config.root_path = "/a";
  config.api_keys = {"secret"};
  listen(config);
  load();
  EXPECT_EQ(ask(get("/a/v1/models")).status, 401);
  EXPECT_EQ(ask(get("/a/v1/models", "Authorization: Bearer secret\r\n")).status, 200);
  EXPECT_EQ(ask(get("/a/health")).status, 200);
}

TEST_F(ServeOptionsTest, PathsWithoutTheVersionAreThoseOfV1) {
  ApiServerConfig config = quiet();
  config.root_path = "/a";
  listen(config);
  load();
  for (const char* path : {"/models", "/a/models?x=1", "/models/toy"})
    EXPECT_EQ(ask(get(path)).status, 200) << path;
  EXPECT_EQ(ask("/chat/completions", R"({"messages": 1})").status, 400);
  EXPECT_EQ(ask("/responses", R"({"input": 1})").status, 400);
  for (const char* path : {"/v1", "/v1/v1/models", "/v1/health", "/model"})
    EXPECT_EQ(ask(get(path)).status, 404) << path;
  // Of llama.cpp's form, as its own route.
  EXPECT_TRUE(json_of(ask("/completions", R"({"prompt": "a", "n_predict": 1})")).contains("content"));
}

TEST_F(ServeOptionsTest, NoKeyIsSparedByLeavingOutTheVersion) {
  ApiServerConfig config = quiet();
  config.api_keys = {"secret"};
  listen(config);
  load();
  EXPECT_EQ(ask(get("/models")).status, 401);
  EXPECT_EQ(ask(get("/models", "Authorization: Bearer secret\r\n")).status, 200);
}

TEST_F(ServeOptionsTest, UsageMayBeForcedOnEveryChunkOfEveryStream) {
  serve(AnswerDefaults{.include_usage = true});
  const std::string body = ask("/v1/completions", std::string(kSeven) + "}").body;
  const auto count = [&](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = body.find(text); at != std::string::npos; at = body.find(text, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("\"prompt_tokens\":"), count("data: {"));
  EXPECT_EQ(last_chunk("").at("usage").at("completion_tokens"), 7);
  EXPECT_EQ(last_chunk(R"(, "stream_options": {"include_usage": false})").at("usage").at("completion_tokens"),
            7);
}

TEST_F(ServeOptionsTest, TokensAreNamedByTheirIdsUnlessTheRequestSaysOtherwise) {
  serve(AnswerDefaults{.return_tokens_as_token_ids = true});
  const auto token = [&](const std::string& more) {
    const HttpReply reply =
        ask("/v1/completions", R"({"prompt": "a", "max_tokens": 1, "logprobs": 0)" + more + "}");
    return json_of(reply).at("choices").at(0).at("logprobs").at("tokens").at(0).get<std::string>();
  };
  EXPECT_TRUE(token("").starts_with("token_id:"));
  EXPECT_FALSE(token(R"(, "return_tokens_as_token_ids": false)").starts_with("token_id:"));
}

TEST_F(ServeOptionsTest, MetricsTellOfOneOutputAlone) {
  serve(AnswerDefaults{.metrics = true});
  const auto metrics = [&](const char* more) {
    const std::string body =
        R"({"prompt": "a", "max_tokens": 5, "ignore_eos": true)" + std::string(more) + "}";
    return json_of(ask("/v1/completions", body)).at("metrics");
  };
  const OrderedJson times = metrics("");
  const double decode = times.at("generation_time_ms"), first = times.at("time_to_first_token_ms");
  EXPECT_GT(decode, 0);
  EXPECT_NEAR(times.at("mean_itl_ms"), decode / 4, 1e-9);
  EXPECT_NEAR(times.at("tokens_per_second"), 5e3 / (decode + first), 1e-6);
  EXPECT_GE(times.at("queue_time_ms"), 0);
  EXPECT_TRUE(metrics(R"(, "n": 2, "temperature": 1)").is_null());
  EXPECT_FALSE(last_chunk("").contains("metrics"));  // no chunk of usage, which would have them
  EXPECT_TRUE(last_chunk(R"(, "stream_options": {"include_usage": true})").at("metrics").is_object());
}

TEST_F(ServeOptionsTest, AGivenTemplateRendersChats) {
  EngineConfig config = small();
  config.chat_template = R"({% for m in messages %}<{{ m.content }}|{{ mood }}>{% endfor %})";
  serve(AnswerDefaults{.chat_template_kwargs = {{"mood", "calm"}}}, config);
  const std::string messages = R"("messages": [{"role": "user", "content": "one"}])";
  EXPECT_EQ(rendered(messages), "<one|calm>");
  EXPECT_EQ(rendered(messages + R"(, "chat_template_kwargs": {"mood": "wild"})"), "<one|wild>");
}

TEST_F(ServeOptionsTest, ContentHasTheFormThatIsSaid) {
  EngineConfig config = small();
  config.chat_template = "{% for m in messages %}{{ m.content is string }}{% endfor %}";
  const std::string messages = R"("messages": [{"role": "user", "content": "one"}])";
  for (const auto& [format, expected] :
       {std::pair{"string", "True"}, {"openai", "False"}, {"auto", "True"}}) {
    ServiceOptions options;
    options.content_format = format;
    serve(options, config);
    EXPECT_EQ(rendered(messages), expected) << format;
    server_.reset();
    service_.reset();
  }
}

TEST_F(ServeOptionsTest, WrongVariablesOfTemplatesAreRefusedAtStart) {
  for (const OrderedJson& wrong :
       {OrderedJson("x"), OrderedJson({{"bos_token", "x"}}), OrderedJson({{"tools", 1}})}) {
    ServiceOptions options;
    options.answers.chat_template_kwargs = wrong;
    EXPECT_THROW(check_options(options), Error) << wrong;
  }
}

TEST_F(ServeOptionsTest, TheDocumentIsServed) {
  listen();
  EXPECT_EQ(ask(get("/openapi.json")).status, 503);
  load();
  EXPECT_EQ(json_of(ask(get("/openapi.json"))).at("openapi"), "3.1.0");
}

}  // namespace
}  // namespace quire::server
