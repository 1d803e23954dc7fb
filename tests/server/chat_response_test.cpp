#include "response_fixtures.h"

namespace quire::server {
namespace {

using test::head;
using test::output;
using test::request_output;
using test::ScriptedParser;

ChatRequest chat_request(const std::string& fields = "\"n\": 1") {
  return parse_chat_request(
      parse_body(R"({"messages": [{"role": "user", "content": "hi"}], )" + fields + "}"),
      test::served_model());
}

class PlainParser : public OutputParser {
 public:
  OutputDelta parse(std::string_view text) override {
    return {.content = std::string(text), .reasoning = {}, .tool_calls = {}};
  }
  OutputDelta finish() override { return {}; }
};

// messages: of each output, which comes with its first token.
OrderedJson body_of(const ChatRequest& request, const RequestOutput& whole,
                    const std::vector<OutputDelta>& messages) {
  const ServedModel model = test::served_model();
  std::size_t next = 0;
  const auto response = make_chat_response(head("chatcmpl-1"), request, model, [&] {
    return std::make_unique<ScriptedParser>(std::vector{messages[next++]});
  });
  test::Player(whole).play([&](const RequestUpdate& update) { response->events(0, update); });
  return response->body({&whole, 1});
}

std::vector<OrderedJson> play(Response& response, const RequestOutput& whole) {
  std::string events;
  test::Player(whole).play([&](const RequestUpdate& update) { events += response.events(0, update); });
  return test::chunks_of(events + response.last_events({}));
}

// The chunks where all text is content.
std::vector<OrderedJson> stream(const ChatRequest& request, const RequestOutput& whole) {
  const ServedModel model = test::served_model();
  const auto response =
      make_chat_response(head("chatcmpl-1"), request, model, [] { return std::make_unique<PlainParser>(); });
  return play(*response, whole);
}

// The chunks of one output of as many tokens as there are deltas.
std::vector<OrderedJson> stream_deltas(const ChatRequest& request, const std::vector<OutputDelta>& deltas) {
  const ServedModel model = test::served_model();
  const auto response = make_chat_response(head("chatcmpl-1"), request, model,
                                           [&] { return std::make_unique<ScriptedParser>(deltas); });
  return play(*response,
              request_output("hi", {output(0, std::string(deltas.size(), 'x'), FinishReason::kStop)}));
}

OutputDelta content(std::string text) {
  return {.content = std::move(text), .reasoning = {}, .tool_calls = {}};
}
OutputDelta reasoning(std::string text) {
  return {.content = {}, .reasoning = std::move(text), .tool_calls = {}};
}
OutputDelta call(int index, std::string id, std::string name, std::string arguments) {
  return {.content = {},
          .reasoning = {},
          .tool_calls = {{index, std::move(id), std::move(name), std::move(arguments)}}};
}

TEST(ChatBodyTest, IsWhatClientsRead) {
  EXPECT_EQ(to_line(body_of(chat_request(), request_output("hi", {output(0, "ok", FinishReason::kStop)}),
                            {content("ok")})),
            R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"toy","choices":[)"
            R"({"index":0,"message":{"role":"assistant","content":"ok","refusal":null,"annotations":null,)"
            R"("audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"stop",)"
            R"("stop_reason":null,"token_ids":null,"routed_experts":null}],)"
            R"("usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"fp","service_tier":null,)"
            R"("prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,"kv_transfer_params":null,)"
            R"("ec_transfer_params":null,"metrics":null})");
}

TEST(ChatBodyTest, AnEchoStandsBeforeTheContent) {
  const auto body = body_of(
      chat_request(R"("echo": true, "add_generation_prompt": false, "n": 2)"),
      request_output("hi", {output(0, "ok", FinishReason::kStop), output(1, "so", FinishReason::kStop)}),
      {content("ok"), content("so")});
  EXPECT_EQ(body["choices"][0]["message"]["content"], "hiok");
  EXPECT_EQ(body["choices"][1]["message"]["content"], "hiso");
  const auto chunks = stream(chat_request(R"("echo": true, "add_generation_prompt": false, "stream": true)"),
                             request_output("hi", {output(0, "ok", FinishReason::kStop)}));
  std::string text;
  for (const OrderedJson& chunk : chunks) text += chunk["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(text, "hiok");
  EXPECT_EQ(chunks[0]["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["content"], "hi");
}

TEST(ChatBodyTest, ToolCallsHaveTheirArgumentsAsText) {
  const auto body = body_of(chat_request(), request_output("hi", {output(0, "ok", FinishReason::kStop)}),
                            {call(0, "c1", "f", R"({"a": 1})")});
  EXPECT_EQ(body["choices"][0]["message"].dump(),
            R"({"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,)"
            R"("function_call":null,"reasoning":null,"tool_calls":[)"
            R"({"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]})");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "tool_calls");
}

TEST(ChatBodyTest, ACallThatWasCutShortHasEndedByLength) {
  const auto body = body_of(chat_request(), request_output("hi", {output(0, "ok", FinishReason::kLength)}),
                            {call(0, "c1", "f", "{")});
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST(ChatBodyTest, ReasoningHasBothNamesAndIsCounted) {
  const auto whole = request_output("hi", {output(0, "ok", FinishReason::kStop)});
  OutputDelta message = content("so");
  message.reasoning = "why";
  const auto body = body_of(chat_request(), whole, {message});
  EXPECT_EQ(body["choices"][0]["message"].dump(),
            R"({"role":"assistant","content":"so","refusal":null,"annotations":null,"audio":null,)"
            R"("function_call":null,"reasoning":"why","reasoning_content":"why"})");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
  const auto hidden = body_of(chat_request("\"include_reasoning\": false"), whole, {message});
  EXPECT_TRUE(hidden["choices"][0]["message"]["reasoning"].is_null());
  const auto only = body_of(chat_request(), whole, {reasoning("why")});
  EXPECT_TRUE(only["choices"][0]["message"]["content"].is_null());
}

// The text of a part of a character comes with its rest, that of the beginning of a tag when it is none.
TEST(ChatOutputTest, TokensOfReasoningCountThoughTheirTextIsHeldBackAndThoseOfItsTagsDoNot) {
  const dialects::OutputFormat format = {.reasoning = &dialects::reasoning_dialect("qwen3"),
                                         .tool_calls = &dialects::tool_dialect("hermes")};
  ChatOutput chat;
  chat.parser = dialects::make_output_parser(format, "");
  RequestOutput request = request_output("hi", {output(0, "", FinishReason::kNone)});
  const std::pair<std::string_view, std::int64_t> kSteps[] = {
      {"<think>", 0}, {"Why", 1}, {"", 1}, {"é", 3}, {"</", 3}, {"b>", 5}, {"</think>", 5}, {"So", 5}};
  for (const auto& [text, counted] : kSteps) {
    request.outputs[0].token_ids.push_back(1);
    chat.take({.request = request, .output = request.outputs[0], .new_text = text, .logits = {}});
    EXPECT_EQ(chat.reasoning_tokens, counted) << text;
  }
  EXPECT_EQ(chat.tokens, std::size(kSteps));
}

TEST(ChatBodyTest, NothingSaidIsAnEmptyText) {
  const auto body =
      body_of(chat_request(), request_output("hi", {output(0, "x", FinishReason::kStop)}), {{}});
  EXPECT_EQ(body["choices"][0]["message"]["content"], "");
}

TEST(ChatBodyTest, ChoicesHaveTheirLogprobsAndTokens) {
  const auto body = body_of(
      chat_request(R"("n": 2, "logprobs": true, "top_logprobs": 1, "return_token_ids": true)"),
      request_output("hi",
                     {output(0, "a", FinishReason::kStop, true), output(1, "b", FinishReason::kStop, true)}),
      {content("a"), content("b")});
  ASSERT_EQ(body["choices"].size(), 2U);
  EXPECT_EQ(body["choices"][1]["index"], 1);
  EXPECT_EQ(
      body["choices"][1]["logprobs"].dump(),
      R"({"content":[{"token":"b","logprob":-0.5,"bytes":[98],"top_logprobs":[{"token":"b","logprob":-0.5,"bytes":[98]}]}]})");
  EXPECT_EQ(body["choices"][1]["token_ids"].dump(), "[98]");
  EXPECT_EQ(body["prompt_token_ids"].dump(), "[104,105]");
  EXPECT_EQ(body["usage"]["completion_tokens"], 2);
}

TEST(ChatStreamTest, RoleFirstThenContentThenUsage) {
  const auto chunks = stream(chat_request(R"("stream": true, "stream_options": {"include_usage": true})"),
                             request_output("hi", {output(0, "ok", FinishReason::kStop)}));
  const std::string begin =
      R"({"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"toy",)";
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_EQ(to_line(chunks[0]), begin + R"("choices":[{"index":0,"delta":{"role":"assistant","content":""},)"
                                        R"("logprobs":null,"finish_reason":null}],"prompt_token_ids":null})");
  EXPECT_EQ(to_line(chunks[1]), begin + R"("choices":[{"index":0,"delta":{"content":"o"},"logprobs":null,)"
                                        R"("finish_reason":null,"token_ids":null}]})");
  EXPECT_EQ(to_line(chunks[2]),
            begin +
                R"("choices":[{"index":0,"delta":{"content":"k"},"logprobs":null,)"
                R"("finish_reason":"stop","stop_reason":null,"token_ids":null}],"system_fingerprint":"fp"})");
  EXPECT_EQ(to_line(chunks[3]),
            begin + R"("choices":[],"usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,)"
                    R"("prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(ChatStreamTest, EveryChoiceHasARoleAndAnEnd) {
  const auto chunks = stream(
      chat_request(R"("stream": true, "n": 2)"),
      request_output("hi", {output(0, "abc", FinishReason::kLength), output(1, "d", FinishReason::kStop)}));
  std::vector<int> roles(2), ends(2);
  std::vector<std::string> texts(2);
  for (const OrderedJson& chunk : chunks) {
    const OrderedJson& choice = chunk["choices"][0];
    const auto index = choice["index"].get<std::size_t>();
    EXPECT_EQ(choice["delta"].contains("role"), roles[index] == 0) << "first, and only then";
    roles[index] = 1;
    EXPECT_EQ(ends[index], 0) << "nothing follows the end";
    if (!choice["finish_reason"].is_null()) ++ends[index];
    texts[index] += choice["delta"].value("content", "");
  }
  EXPECT_EQ(ends, (std::vector{1, 1}));
  EXPECT_EQ(texts, (std::vector<std::string>{"abc", "d"}));
}

TEST(ChatStreamTest, ToolCallsBeginWithANameAndGoOnWithArguments) {
  const auto chunks = stream_deltas(chat_request("\"stream\": true"), {call(0, "c1", "f", ""),
                                                                       call(0, "", "", "{\"a\""),
                                                                       call(0, "", "", ": 1}"),
                                                                       call(1, "c2", "g", "{}"),
                                                                       {}});
  std::vector<std::string> deltas;
  for (const OrderedJson& chunk : chunks) deltas.push_back(chunk["choices"][0]["delta"].dump());
  EXPECT_THAT(
      deltas,
      ::testing::ElementsAre(
          R"({"role":"assistant","content":""})",
          R"({"tool_calls":[{"index":0,"id":"c1","type":"function","function":{"name":"f","arguments":""}}]})",
          R"({"tool_calls":[{"index":0,"function":{"arguments":"{\"a\""}}]})",
          R"({"tool_calls":[{"index":0,"function":{"arguments":": 1}"}}]})",
          R"({"tool_calls":[{"index":1,"id":"c2","type":"function","function":{"name":"g","arguments":""}}]})",
          R"({"tool_calls":[{"index":1,"function":{"arguments":"{}"}}]})", "{}"));
  EXPECT_EQ(chunks.back()["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_TRUE(chunks[chunks.size() - 2]["choices"][0]["finish_reason"].is_null());
}

// As with best_of, whose outputs come whole. Clients take a call for whole where the next one begins.
TEST(ChatStreamTest, CallsThatComeTogetherComeOneAfterTheOther) {
  OutputDelta all = content("so");
  all.tool_calls = {{0, "", "", "}"}, {1, "c1", "f", "{}"}, {2, "c2", "g", "[]"}};
  std::string heads;
  for (const OrderedJson& chunk : stream_deltas(chat_request("\"stream\": true"), {all}))
    for (const OrderedJson& call : chunk["choices"][0]["delta"].value("tool_calls", OrderedJson::array()))
      heads += call["index"].dump() + call.value("id", "") + call["function"]["arguments"].dump();
  EXPECT_EQ(heads, R"(0"}"1c1""1"{}"2c2""2"[]")");
}

TEST(ChatStreamTest, ReasoningComesUnderBothNames) {
  const std::vector<OutputDelta> deltas = {reasoning("a"), reasoning("b"), content("c")};
  const auto chunks =
      stream_deltas(chat_request(R"("stream": true, "stream_options": {"include_usage": true})"), deltas);
  EXPECT_EQ(chunks[1]["choices"][0]["delta"].dump(), R"({"reasoning":"a","reasoning_content":"a"})");
  EXPECT_EQ(chunks[3]["choices"][0]["delta"].dump(), R"({"content":"c"})");
  EXPECT_EQ(chunks[4]["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  const auto hidden = stream_deltas(chat_request(R"("stream": true, "include_reasoning": false)"), deltas);
  EXPECT_EQ(hidden[1]["choices"][0]["delta"].dump(), "{}");
}

TEST(ChatStreamTest, LogprobsOfEveryTokenComeOnce) {
  const auto request = chat_request(R"("stream": true, "logprobs": true, "return_token_ids": true)");
  const auto whole = request_output("hi", {output(0, "abc", FinishReason::kStop, true)});
  std::string tokens;
  std::size_t ids = 0;
  for (const OrderedJson& chunk : stream(request, whole)) {
    const OrderedJson& choice = chunk["choices"][0];
    if (choice["delta"].contains("role")) {
      EXPECT_TRUE(choice["logprobs"].is_null());
      EXPECT_EQ(chunk["prompt_token_ids"].dump(), "[104,105]");
      continue;
    }
    for (const OrderedJson& entry : choice["logprobs"]["content"])
      tokens += entry["token"].get<std::string>();
    ids += choice["token_ids"].size();
  }
  EXPECT_EQ(tokens, "abc");
  EXPECT_EQ(ids, 3U);
}

TEST(ChatStreamTest, ContinuousUsageIsInEveryChunk) {
  const auto chunks = stream(
      chat_request(
          R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"),
      request_output("hi", {output(0, "ab", FinishReason::kStop)}));
  ASSERT_EQ(chunks.size(), 4U);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(chunks[static_cast<std::size_t>(i)]["usage"]["completion_tokens"], i);
  EXPECT_EQ(chunks[3]["usage"]["completion_tokens"], 2);
}

TEST(ChatStreamTest, ContinuousUsageIsInBothChunksOfACallsBeginning) {
  const auto chunks = stream_deltas(
      chat_request(
          R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})"),
      {call(0, "c1", "f", "{}"), content("x")});
  ASSERT_EQ(chunks.size(), 5U);
  const int expected[] = {0, 1, 1, 2, 2};
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(chunks[i]["usage"]["completion_tokens"], expected[i]) << i;
    EXPECT_EQ(chunks[i]["usage"]["prompt_tokens"], 2) << i;
  }
}

// The role is not sent before there is a token: clients take it for the first one.
TEST(ChatStreamTest, NothingIsSentBeforeTheFirstToken) {
  const ServedModel model = test::served_model();
  const ChatRequest request = chat_request("\"stream\": true");
  const auto response =
      make_chat_response(head("chatcmpl-1"), request, model, [] { return std::make_unique<PlainParser>(); });
  const RequestOutput nothing = request_output("x", {output(0, "", FinishReason::kNone)});
  const RequestUpdate update{.request = nothing, .output = nothing.outputs[0], .new_text = {}, .logits = {}};
  EXPECT_EQ(response->events(0, update), "");
}

TEST(ChatBodyTest, DeltasJoinedAreTheMessage) {
  const ServedModel model = test::served_model();
  const std::vector<OutputDelta> deltas = {reasoning("a"), content("b"), call(0, "c1", "f", ""),
                                           call(0, "", "", "{}"), call(1, "c2", "g", "[]")};
  const auto response = make_chat_response(head("chatcmpl-1"), chat_request(), model,
                                           [&] { return std::make_unique<ScriptedParser>(deltas); });
  const std::string text = "xxxxxx";
  for (std::size_t tokens = 2; tokens <= text.size(); ++tokens) {  // two come with the reasoning
    const auto reason = tokens == text.size() ? FinishReason::kStop : FinishReason::kNone;
    const RequestOutput now = request_output("hi", {output(0, text.substr(0, tokens), reason)});
    response->events(0, {.request = now, .output = now.outputs[0], .new_text = {}, .logits = {}});
  }
  const RequestOutput whole = request_output("hi", {output(0, text, FinishReason::kStop)});
  const OrderedJson body = response->body({&whole, 1});
  const OrderedJson& message = body["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "a");
  EXPECT_EQ(message["content"], "b");
  EXPECT_EQ(body["usage"]["completion_tokens_details"]["reasoning_tokens"], 2);
  ASSERT_EQ(message["tool_calls"].size(), 2U);
  EXPECT_EQ(message["tool_calls"][0]["id"], "c1");
  EXPECT_EQ(message["tool_calls"][0]["function"]["arguments"], "{}");
  EXPECT_EQ(message["tool_calls"][1]["function"]["name"], "g");
}

}  // namespace
}  // namespace quire::server
