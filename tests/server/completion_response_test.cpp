#include <chrono>

#include "response_fixtures.h"
#include "server/completion.h"

namespace quire::server {
namespace {

using test::head;
using test::output;
using test::request_output;

CompletionRequest completion_request(std::string_view body) {
  return parse_completion_request(parse_body(body), test::served_model());
}

OrderedJson body_of(const CompletionRequest& request, const std::vector<RequestOutput>& outputs) {
  const ServedModel model = test::served_model();
  return make_completion_response(head("cmpl-1"), request, model)->body(outputs);
}

// The chunks of a stream of one prompt, and its last one.
std::vector<OrderedJson> stream(const CompletionRequest& request, const RequestOutput& whole) {
  const ServedModel model = test::served_model();
  const auto stream = make_completion_response(head("cmpl-1"), request, model);
  std::string events;
  test::Player(whole).play([&](const RequestUpdate& update) { events += stream->events(0, update); });
  return test::chunks_of(events + stream->last_events({&whole, 1}));
}

TEST(CompletionBodyTest, IsWhatClientsRead) {
  CompletionOutput stopped = output(0, "ok", FinishReason::kStop);
  stopped.stop_reason = std::string("END");
  EXPECT_EQ(to_line(body_of(completion_request(R"({"prompt": "hi"})"), {request_output("hi", {stopped}, 1)})),
            R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"toy",)"
            R"("choices":[{"index":0,"text":"ok","logprobs":null,"finish_reason":"stop","stop_reason":"END",)"
            R"("prompt_token_ids":null,"token_ids":null,"prompt_logprobs":null,"routed_experts":null}],)"
            R"("usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,)"
            R"("prompt_tokens_details":{"cached_tokens":1}},"system_fingerprint":"fp","service_tier":null,)"
            R"("kv_transfer_params":null,"ec_transfer_params":null,"metrics":null})");
}

TEST(CompletionBodyTest, ReasonsHaveTheNamesThatClientsKnow) {
  for (const auto& [reason, name] : {std::pair{FinishReason::kStop, "stop"},
                                     {FinishReason::kLength, "length"},
                                     {FinishReason::kAbort, "abort"},
                                     {FinishReason::kTimeout, "abort"}}) {
    const auto body =
        body_of(completion_request(R"({"prompt": "x"})"), {request_output("x", {output(0, "a", reason)})});
    EXPECT_EQ(body["choices"][0]["finish_reason"], name);
    EXPECT_TRUE(body["choices"][0]["stop_reason"].is_null());
  }
  CompletionOutput token = output(0, "a", FinishReason::kStop);
  token.stop_reason = 97;
  EXPECT_EQ(body_of(completion_request(R"({"prompt": "x"})"),
                    {request_output("x", {token})})["choices"][0]["stop_reason"],
            97);
}

TEST(CompletionBodyTest, AFailureIsAnErrorAndNoAnswer) {
  CompletionOutput failed = output(0, "", FinishReason::kError);
  failed.error = "the model's logits are not finite numbers";
  EXPECT_EQ(failure_of(failed)->status, 500);
  EXPECT_STREQ(failure_of(failed)->what(), "the model's logits are not finite numbers");
  for (const char* internal : {"launch failed in /src/x.cu", "bad address 0x7f00"}) {
    failed.error = internal;
    EXPECT_STREQ(failure_of(failed)->what(), "the request failed; the server's log says more");
  }
  EXPECT_FALSE(failure_of(output(0, "a", FinishReason::kLength)));
  failed.error = "allowed_token_ids leave no token";
  failed.is_request_at_fault = true;
  EXPECT_EQ(failure_of(failed)->status, 400);
  EXPECT_EQ(failure_of(failed)->param, "allowed_token_ids");
}

TEST(CompletionBodyTest, ChoicesOfSeveralPromptsAreNumberedThrough) {
  const auto body = body_of(
      completion_request(R"({"prompt": ["x", "yy"], "n": 2})"),
      {request_output("x", {output(0, "a", FinishReason::kStop), output(1, "bb", FinishReason::kStop)}),
       request_output("yy", {output(0, "c", FinishReason::kStop), output(1, "d", FinishReason::kStop)}, 1)});
  ASSERT_EQ(body["choices"].size(), 4U);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(body["choices"][i]["index"], i);
  EXPECT_EQ(body["choices"][2]["text"], "c");
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 5);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 1);
}

RequestOutput echoed() {
  RequestOutput whole = request_output("xyz", {output(0, "ab", FinishReason::kLength, true)});
  whole.prompt_logprobs = {{{'y', -2, 1}, {{'y', -2, 1}}}, {{'z', -3, 2}, {{'q', -1, 1}}}};
  return whole;
}

// lm-evaluation-harness slices these lists by the number of prompt tokens.
TEST(CompletionBodyTest, EchoWithLogprobsCoversPromptAndOutput) {
  const auto body =
      body_of(completion_request(R"({"prompt": [120, 121, 122], "echo": true, "logprobs": 1})"), {echoed()});
  const OrderedJson& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "xyzab");
  EXPECT_EQ(
      choice["logprobs"].dump(),
      R"({"text_offset":[0,1,2,3,4],"token_logprobs":[null,-2.0,-3.0,-0.5,-1.5],"tokens":["x","y","z","a","b"],)"
      R"("top_logprobs":[null,{"y":-2.0},{"z":-3.0,"q":-1.0},{"a":-0.5},{"b":-1.5}]})");
  EXPECT_TRUE(choice["prompt_logprobs"].is_null());
}

TEST(CompletionBodyTest, EchoWithoutOutputIsThePromptAlone) {
  RequestOutput whole = echoed();
  whole.outputs = {output(0, "", FinishReason::kLength)};
  const auto body = body_of(
      completion_request(R"({"prompt": "xyz", "echo": true, "logprobs": 0, "max_tokens": 0})"), {whole});
  EXPECT_EQ(body["choices"][0]["text"], "xyz");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), 3U);
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(body["usage"]["completion_tokens"], 0);
}

TEST(CompletionBodyTest, EchoShowsATextAsItWasGivenAndWhatIsLeftOfATruncatedOne) {
  const RequestOutput whole = request_output("yz", {output(0, "!", FinishReason::kLength)});
  EXPECT_EQ(
      body_of(completion_request(R"({"prompt": "\u00e9yz", "echo": true})"), {whole})["choices"][0]["text"],
      "\xC3\xA9yz!");
  EXPECT_EQ(body_of(completion_request(R"({"prompt": "xyz", "echo": true, "truncate_prompt_tokens": 2})"),
                    {whole})["choices"][0]["text"],
            "yz!");
}

TEST(CompletionBodyTest, VllmsExtrasComeWhereAskedFor) {
  const auto body = body_of(
      completion_request(R"({"prompt": "xyz", "prompt_logprobs": 1, "return_token_ids": true, "logprobs": 0,
                        "return_tokens_as_token_ids": true})"),
      {echoed()});
  const OrderedJson& choice = body["choices"][0];
  EXPECT_EQ(choice["prompt_logprobs"].size(), 3U);
  EXPECT_TRUE(choice["prompt_logprobs"][0].is_null());
  EXPECT_EQ(choice["prompt_token_ids"].dump(), "[120,121,122]");
  EXPECT_EQ(choice["token_ids"].dump(), "[97,98]");
  EXPECT_EQ(choice["logprobs"]["tokens"].dump(), R"(["token_id:97","token_id:98"])");
}

TEST(CompletionBodyTest, TimingsComeWhereAskedFor) {
  RequestOutput timed = request_output("wxyz", {output(0, "ab", FinishReason::kStop)}, 3);
  const TimePoint scheduled = timed.arrival + std::chrono::milliseconds(250);
  const TimePoint first_token = scheduled + std::chrono::milliseconds(500);
  const TimePoint end = first_token + std::chrono::milliseconds(2000);
  timed.outputs[0].times = {scheduled, first_token, end, end};
  const auto body = body_of(completion_request(R"({"prompt": "x", "timings": true})"), {timed});
  EXPECT_EQ(
      body["timings"].dump(),
      R"({"queue_ms":250.0,"cache_n":3,"prompt_n":1,"prompt_ms":500.0,"prompt_per_token_ms":500.0,)"
      R"("prompt_per_second":2.0,"predicted_n":2,"predicted_ms":2000.0,"predicted_per_token_ms":1000.0,)"
      R"("predicted_per_second":1.0})");
  timed.outputs[0].token_ids.clear();
  const auto none = body_of(completion_request(R"({"prompt": "x", "timings": true})"), {timed});
  EXPECT_EQ(none["timings"]["predicted_per_token_ms"], 0);
}

TEST(CompletionStreamTest, HasAChunkForEachTokenAndUsageAtTheEnd) {
  const auto chunks = stream(
      completion_request(R"({"prompt": "hi", "stream": true, "stream_options": {"include_usage": true}})"),
      request_output("hi", {output(0, "ok", FinishReason::kStop)}, 1));
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(to_line(chunks[0]),
            R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"toy","choices":[)"
            R"({"index":0,"text":"o","logprobs":null,"finish_reason":null,"stop_reason":null,)"
            R"("prompt_token_ids":null,"token_ids":null}]})");
  EXPECT_EQ(to_line(chunks[1]),
            R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"toy","choices":[)"
            R"({"index":0,"text":"k","logprobs":null,"finish_reason":"stop","stop_reason":null,)"
            R"("prompt_token_ids":null,"token_ids":null}],"system_fingerprint":"fp"})");
  EXPECT_EQ(
      to_line(chunks[2]),
      R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"toy","choices":[],)"
      R"("usage":{"prompt_tokens":2,"total_tokens":4,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST(CompletionStreamTest, WithoutUsageThereIsNoLastChunk) {
  const auto chunks = stream(completion_request(R"({"prompt": "hi", "stream": true})"),
                             request_output("hi", {output(0, "ok", FinishReason::kStop)}));
  EXPECT_EQ(chunks.size(), 2U);
  for (const OrderedJson& chunk : chunks) EXPECT_FALSE(chunk.contains("usage"));
  const auto timed = stream(completion_request(R"({"prompt": "hi", "stream": true, "timings": true})"),
                            request_output("hi", {output(0, "ok", FinishReason::kStop)}));
  EXPECT_TRUE(timed.back().contains("timings"));
  EXPECT_FALSE(timed.back().contains("usage"));
}

TEST(CompletionStreamTest, ContinuousUsageCountsEachChoice) {
  const auto chunks = stream(
      completion_request(R"({"prompt": "hi", "n": 2, "stream": true,
      "stream_options": {"include_usage": true, "continuous_usage_stats": true}})"),
      request_output("hi", {output(0, "ab", FinishReason::kStop), output(1, "c", FinishReason::kStop)}));
  ASSERT_EQ(chunks.size(), 4U);
  EXPECT_EQ(chunks[0]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(chunks[1]["usage"]["completion_tokens"], 1);
  EXPECT_EQ(chunks[1]["choices"][0]["index"], 1);
  EXPECT_EQ(chunks[2]["usage"]["completion_tokens"], 2);
  EXPECT_EQ(chunks[3]["usage"]["completion_tokens"], 3);
}

TEST(CompletionStreamTest, ChunksJoinedAreTheWholeAnswer) {
  const CompletionRequest request = completion_request(
      R"({"prompt": "xyz", "n": 2, "echo": true, "logprobs": 1, "stream": true, "return_token_ids": true})");
  RequestOutput whole = echoed();
  whole.outputs.push_back(output(1, "longer", FinishReason::kLength, true));
  const OrderedJson body = body_of(request, {whole});
  std::vector<OrderedJson> joined(2);
  for (const OrderedJson& chunk : stream(request, whole)) {
    const OrderedJson& choice = chunk["choices"][0];
    OrderedJson& all = joined[choice["index"].get<std::size_t>()];
    if (all.is_null()) {
      all = choice;
      continue;
    }
    all["text"] = all["text"].get<std::string>() + choice["text"].get<std::string>();
    for (const auto& [name, values] : choice["logprobs"].items())
      all["logprobs"][name].insert(all["logprobs"][name].end(), values.begin(), values.end());
    all["token_ids"].insert(all["token_ids"].end(), choice["token_ids"].begin(), choice["token_ids"].end());
    all["finish_reason"] = choice["finish_reason"];
  }
  for (std::size_t i = 0; i < 2; ++i) {
    for (const char* name : {"text", "logprobs", "token_ids", "prompt_token_ids", "finish_reason"})
      EXPECT_EQ(joined[i][name], body["choices"][i][name]) << name;
  }
}

TEST(CompletionStreamTest, UpdatesWithoutATokenAreNoChunks) {
  const CompletionRequest request = completion_request(R"({"prompt": "x", "stream": true})");
  const ServedModel model = test::served_model();
  const auto stream = make_completion_response(head("cmpl-1"), request, model);
  const RequestOutput nothing = request_output("x", {output(0, "", FinishReason::kNone)});
  EXPECT_TRUE(
      stream->events(0, {.request = nothing, .output = nothing.outputs[0], .new_text = {}, .logits = {}})
          .empty());
  // A token whose text is held back is one.
  const RequestOutput held = request_output("x", {output(0, "a", FinishReason::kNone)});
  const auto chunks = test::chunks_of(
      stream->events(0, {.request = held, .output = held.outputs[0], .new_text = {}, .logits = {}}));
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0]["choices"][0]["text"], "");
}

}  // namespace
}  // namespace quire::server
