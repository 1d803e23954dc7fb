// What every API says of tokens, counted: in whole answers, and in each event of a stream that has a count.
#include <map>
#include <numeric>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

constexpr const char* kCounted = R"("max_tokens": 5, "ignore_eos": true, "return_token_ids": true)";
constexpr const char* kStreamed =
    R"(, "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})";
constexpr const char* kLongText =
    "the water ran over the stones and the boy looked at the fish that swam in it";

class UsageTest : public ApiServerTest {
 protected:
  void SetUp() override { start(); }

  std::vector<OrderedJson> events(std::string_view path, const std::string& body) {
    const HttpReply reply = ask(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<OrderedJson> events;
    for (std::size_t at = reply.body.find("data: {"); at != std::string::npos;
         at = reply.body.find("data: {", at + 1))
      events.push_back(OrderedJson::parse(reply.body.substr(at + 6, reply.body.find('\n', at) - at - 6)));
    return events;
  }
  OrderedJson answer(std::string_view path, const std::string& body) {
    const HttpReply reply = ask(path, body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply);
  }
  std::int64_t count(const std::string& fields) {
    return answer("/tokenize", "{" + fields + "}").at("count").get<std::int64_t>();
  }
  static std::string prompt(std::string_view text) { return R"("prompt": ")" + std::string(text) + '"'; }
  static std::string messages(std::string_view text) {
    return R"("messages": [{"role": "user", "content": ")" + std::string(text) + R"("}])";
  }

  static void expect_usage(const OrderedJson& json, std::int64_t prompt, std::int64_t completion,
                           std::int64_t cached) {
    ASSERT_TRUE(json.contains("usage")) << json;
    const OrderedJson& usage = json.at("usage");
    EXPECT_EQ(usage.at("prompt_tokens"), prompt) << json;
    EXPECT_EQ(usage.at("completion_tokens"), completion) << json;
    EXPECT_EQ(usage.at("total_tokens"), prompt + completion) << json;
    EXPECT_EQ(usage.at("prompt_tokens_details").at("cached_tokens"), cached) << json;
  }

  // Each chunk has the count of its choice's prompt, and of the token ids that came up to it; the last one,
  // of all. cached: of the first choice's prompt; siblings share it.
  static void expect_counted(const std::vector<OrderedJson>& chunks, const std::vector<std::int64_t>& prompts,
                             std::size_t choices, std::int64_t cached) {
    std::map<std::size_t, std::int64_t> sent;
    ASSERT_GT(chunks.size(), choices);
    for (const OrderedJson& chunk : std::span(chunks).first(chunks.size() - 1)) {
      const OrderedJson& choice = chunk.at("choices").at(0);
      const std::size_t index = choice.at("index");
      if (const auto ids = choice.find("token_ids"); ids != choice.end() && ids->is_array())
        sent[index] += std::ssize(*ids);
      expect_usage(chunk, prompts[index * prompts.size() / choices], sent[index], cached);
    }
    ASSERT_EQ(sent.size(), choices);
    for (const auto& [index, tokens] : sent) EXPECT_EQ(tokens, 5) << index;
    EXPECT_TRUE(chunks.back().at("choices").empty());
    expect_usage(chunks.back(), std::accumulate(prompts.begin(), prompts.end(), std::int64_t{0}),
                 5 * static_cast<std::int64_t>(choices), cached * static_cast<std::int64_t>(prompts.size()));
  }
};

TEST_F(UsageTest, EveryChunkOfACompletionCountsExactly) {
  const std::int64_t tokens = count(prompt("once upon a time"));
  for (const char* more : {"", R"(, "echo": true)", R"(, "echo": true, "logprobs": 1)"}) {
    SCOPED_TRACE(more);
    const std::string body = "{" + prompt("once upon a time") + ", " + kCounted + more;
    const OrderedJson whole = answer("/v1/completions", body + "}");
    expect_usage(whole, tokens, 5, 0);
    EXPECT_EQ(whole.at("choices").at(0).at("prompt_token_ids").size(), tokens);
    expect_counted(events("/v1/completions", body + kStreamed + "}"), {tokens}, 1, 0);
  }
}

TEST_F(UsageTest, ChoicesOfACompletionAreCountedEach) {
  const std::int64_t tokens = count(prompt("once upon a time"));
  const std::string body = "{" + prompt("once upon a time") + R"(, "n": 3, "seed": 1, )" + kCounted;
  expect_usage(answer("/v1/completions", body + "}"), tokens, 15, 0);
  expect_counted(events("/v1/completions", body + kStreamed + "}"), {tokens}, 3, 0);
}

TEST_F(UsageTest, PromptsOfACompletionAreCountedEach) {
  const std::vector<std::int64_t> tokens = {count(prompt("a boy")), count(prompt("the girl saw a bird"))};
  ASSERT_NE(tokens[0], tokens[1]);
  const std::string body =
      R"({"prompt": ["a boy", "the girl saw a bird"], "n": 2, "seed": 1, )" + std::string(kCounted);
  expect_usage(answer("/v1/completions", body + "}"), tokens[0] + tokens[1], 20, 0);
  expect_counted(events("/v1/completions", body + kStreamed + "}"), tokens, 4, 0);
}

// A prompt that was computed before comes from the cache in whole blocks of 16, but for its last token.
TEST_F(UsageTest, TokensOfTheCacheAreCountedExactly) {
  const std::int64_t tokens = count(prompt(kLongText)), cached = (tokens - 1) / 16 * 16;
  ASSERT_GT(cached, 0);
  const std::string body = "{" + prompt(kLongText) + ", " + kCounted;
  expect_usage(answer("/v1/completions", body + "}"), tokens, 5, 0);
  expect_usage(answer("/v1/completions", body + "}"), tokens, 5, cached);
  expect_counted(events("/v1/completions", body + kStreamed + "}"), {tokens}, 1, cached);
  const OrderedJson timed =
      answer("/completion", "{" + prompt(kLongText) + R"(, "n_predict": 3, "ignore_eos": true})");
  EXPECT_EQ(timed.at("tokens_evaluated"), tokens);
  EXPECT_EQ(timed.at("tokens_predicted"), 3);
  EXPECT_EQ(timed.at("timings").at("cache_n"), cached);
  EXPECT_EQ(timed.at("timings").at("prompt_n"), tokens - cached);
  EXPECT_EQ(timed.at("timings").at("predicted_n"), 3);
}

TEST_F(UsageTest, EveryChunkOfAChatCountsExactly) {
  const std::int64_t tokens = count(messages("hi"));
  for (const char* more : {"", R"(, "logprobs": true)"}) {
    SCOPED_TRACE(more);
    const std::string body = "{" + messages("hi") + ", " + kCounted + more;
    expect_usage(answer("/v1/chat/completions", body + "}"), tokens, 5, 0);
    expect_counted(events("/v1/chat/completions", body + kStreamed + "}"), {tokens}, 1, 0);
  }
}

TEST_F(UsageTest, WhatAChatEchoesIsNotCounted) {
  const std::string said =
      R"("messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}])";
  const std::int64_t tokens = count(said);
  const std::string body = "{" + said + R"(, "echo": true, )" + kCounted;
  expect_usage(answer("/v1/chat/completions", body + "}"), tokens, 5, 0);
  const auto chunks = events("/v1/chat/completions", body + kStreamed + "}");
  EXPECT_EQ(chunks.at(1).at("choices").at(0).at("delta").at("content"), "so");
  expect_counted(chunks, {tokens}, 1, 0);
}

TEST_F(UsageTest, ChoicesOfAChatAreCountedEach) {
  const std::int64_t tokens = count(messages("hi"));
  const std::string body = "{" + messages("hi") + R"(, "n": 3, "seed": 1, )" + kCounted;
  expect_usage(answer("/v1/chat/completions", body + "}"), tokens, 15, 0);
  expect_counted(events("/v1/chat/completions", body + kStreamed + "}"), {tokens}, 3, 0);
}

TEST_F(UsageTest, ResponsesCountExactly) {
  const std::int64_t tokens = count(messages(kLongText)), cached = (tokens - 1) / 16 * 16;
  const std::string body =
      R"({"max_output_tokens": 5, "ignore_eos": true, "input": ")" + std::string(kLongText) + '"';
  const auto expect = [&](const OrderedJson& usage, std::int64_t hit) {
    EXPECT_EQ(usage.at("input_tokens"), tokens);
    EXPECT_EQ(usage.at("input_tokens_details").at("cached_tokens"), hit);
    EXPECT_EQ(usage.at("output_tokens"), 5);
    EXPECT_EQ(usage.at("total_tokens"), tokens + 5);
  };
  expect(answer("/v1/responses", body + "}").at("usage"), 0);
  std::size_t counts = 0;
  for (const OrderedJson& event : events("/v1/responses", body + R"(, "stream": true})")) {
    if (!event.contains("response") || event.at("response").at("usage").is_null()) continue;
    expect(event.at("response").at("usage"), cached);
    ++counts;
  }
  EXPECT_EQ(counts, 1U);
}

TEST_F(UsageTest, MessagesCountExactly) {
  const std::int64_t tokens = count(messages(kLongText)), cached = (tokens - 1) / 16 * 16;
  const std::string body = R"({"max_tokens": 5, "ignore_eos": true, )" + messages(kLongText);
  const auto expect = [&](const OrderedJson& usage, std::int64_t hit, std::int64_t output) {
    EXPECT_EQ(usage.at("input_tokens"), tokens - hit) << usage;
    EXPECT_EQ(usage.at("cache_read_input_tokens"), hit) << usage;
    EXPECT_EQ(usage.at("cache_creation_input_tokens"), 0) << usage;
    EXPECT_EQ(usage.at("output_tokens"), output) << usage;
  };
  EXPECT_EQ(answer("/v1/messages/count_tokens", "{" + messages(kLongText) + "}").at("input_tokens"), tokens);
  expect(answer("/v1/messages", body + "}").at("usage"), 0, 5);
  const auto streamed = events("/v1/messages", body + R"(, "stream": true})");
  ASSERT_GT(streamed.size(), 4U);
  expect(streamed[0].at("message").at("usage"), cached, 1);
  expect(streamed[streamed.size() - 2].at("usage"), cached, 5);
  EXPECT_EQ(streamed[streamed.size() - 2].at("type"), "message_delta");
}

}  // namespace
}  // namespace quire::server
