#include <map>

#include "response_fixtures.h"
#include "server/responses.h"

namespace quire::server {
namespace {

using test::output;
using test::request_output;
using test::ScriptedParser;

const std::string kResponseId = "resp_0123456789abcdef0123456789abcdef";

OutputDelta says(std::string text) { return {.content = std::move(text), .reasoning = {}, .tool_calls = {}}; }
OutputDelta thinks(std::string text) {
  return {.content = {}, .reasoning = std::move(text), .tool_calls = {}};
}
OutputDelta calls(int index, std::string id, std::string arguments) {
  const std::string name = id.empty() ? "" : "f";
  return {.content = {}, .reasoning = {}, .tool_calls = {{index, std::move(id), name, std::move(arguments)}}};
}

std::vector<OrderedJson> parse_events(std::string_view text) {
  std::vector<OrderedJson> events;
  while (!text.empty()) {
    const std::size_t data = text.find("\ndata: ");
    const std::size_t end = text.find("\n\n");
    events.push_back(OrderedJson::parse(text.substr(data + 7, end - data - 7)));
    EXPECT_EQ(text.substr(0, data), "event: " + events.back()["type"].get<std::string>());
    text.remove_prefix(end + 2);
  }
  return events;
}

class ResponsesResponseTest : public ::testing::Test {
 protected:
  struct Made {
    std::vector<OrderedJson> events;  // of a stream
    OrderedJson answer;
  };

  std::unique_ptr<Response> make(const std::string& fields, std::vector<OutputDelta> deltas) {
    const ResponsesContext context{model_, store_, 5, kResponseId};
    ResponsesRequest request =
        parse_responses_request(parse_body(R"({"input": "hi", )" + fields + "}"), context);
    return make_responses_response(test::head(kResponseId), std::move(request), context,
                                   [&] { return std::make_unique<ScriptedParser>(std::move(deltas)); });
  }
  // A token for each delta.
  RequestOutput tokens(std::size_t count, FinishReason reason, bool logprobs = false) {
    return request_output("hi", {output(0, std::string(count, 'x'), reason, logprobs)}, 1);
  }
  Made stream(const std::vector<OutputDelta>& deltas, FinishReason reason = FinishReason::kStop,
              const std::string& fields = "\"n\": 1", bool logprobs = false) {
    const auto response = make(fields + ", \"stream\": true", deltas);
    std::string text;
    test::Player(tokens(deltas.size(), reason, logprobs)).play([&](const RequestUpdate& update) {
      text += response->events(0, update);
    });
    text += response->last_events({});
    Made made{parse_events(text), {}};
    made.answer = made.events.back()["response"];
    return made;
  }
  OrderedJson whole(const std::vector<OutputDelta>& deltas, FinishReason reason = FinishReason::kStop) {
    const auto response = make("\"n\": 1", deltas);
    const RequestOutput all = tokens(deltas.size(), reason);
    test::Player(all).play([&](const RequestUpdate& update) { response->events(0, update); });
    return response->body({&all, 1});
  }
  static std::vector<std::string> types(const std::vector<OrderedJson>& events) {
    std::vector<std::string> names;
    for (const OrderedJson& event : events) names.push_back(event["type"].get<std::string>().substr(9));
    return names;
  }

  ServedModel model_ = test::served_model();
  ResponseStore store_{1 << 20};
};

const std::vector<OutputDelta> kTurn = {
    thinks("why "),           thinks("not"),        says("So "),         says("be it."),
    calls(0, "c0", "{\"a\""), calls(0, "", ": 1}"), calls(1, "c1", "{}")};

TEST_F(ResponsesResponseTest, EventsComeInTheirOrder) {
  const Made made = stream(kTurn);
  EXPECT_EQ(types(made.events), (std::vector<std::string>{"created",
                                                          "in_progress",
                                                          "output_item.added",
                                                          "content_part.added",
                                                          "reasoning_text.delta",
                                                          "reasoning_text.delta",
                                                          "reasoning_text.done",
                                                          "content_part.done",
                                                          "output_item.done",
                                                          "output_item.added",
                                                          "content_part.added",
                                                          "output_text.delta",
                                                          "output_text.delta",
                                                          "output_text.done",
                                                          "content_part.done",
                                                          "output_item.done",
                                                          "output_item.added",
                                                          "function_call_arguments.delta",
                                                          "function_call_arguments.delta",
                                                          "function_call_arguments.done",
                                                          "output_item.done",
                                                          "output_item.added",
                                                          "function_call_arguments.delta",
                                                          "function_call_arguments.done",
                                                          "output_item.done",
                                                          "completed"}));
  for (std::size_t i = 0; i < made.events.size(); ++i) EXPECT_EQ(made.events[i]["sequence_number"], i);
  EXPECT_EQ(made.events[4]["content_index"], 0);
  EXPECT_EQ(made.events[0]["response"]["status"], "in_progress");
  EXPECT_EQ(made.events[0]["response"]["output"].dump(), "[]");
}

TEST_F(ResponsesResponseTest, DeltasJoinedAreTheWholeAnswer) {
  const Made made = stream(kTurn);
  std::map<std::string, std::string> joined;
  std::map<std::string, std::int64_t> index;
  for (const OrderedJson& event : made.events) {
    if (event.contains("delta")) joined[event["item_id"]] += event["delta"].get<std::string>();
    if (event.contains("item_id")) index.emplace(event["item_id"], event["output_index"]);
  }
  const OrderedJson answer = whole(kTurn);
  ASSERT_EQ(answer["output"].size(), 4U);
  EXPECT_EQ(made.answer["output"], answer["output"]);
  for (std::size_t i = 0; i < 4; ++i) {
    const OrderedJson& item = answer["output"][i];
    EXPECT_EQ(index[item["id"]], static_cast<std::int64_t>(i));
    const OrderedJson& text = item.contains("arguments") ? item["arguments"] : item["content"][0]["text"];
    EXPECT_EQ(joined[item["id"]], text.get<std::string>());
    EXPECT_EQ(item["status"], "completed");
  }
  EXPECT_EQ(made.answer["usage"].dump(),
            R"({"input_tokens":2,"input_tokens_details":{"cached_tokens":1,"cache_write_tokens":0},)"
            R"("output_tokens":7,"output_tokens_details":{"reasoning_tokens":2},"total_tokens":9})");
}

TEST_F(ResponsesResponseTest, WhatComesTogetherGoesOnWithTheOpenItemFirst) {
  OutputDelta both = says("!");
  both.reasoning = "hm";
  const OrderedJson after_text = whole({says("a"), both});
  EXPECT_EQ(after_text["output"][0]["content"][0]["text"], "a!");
  EXPECT_EQ(after_text["output"][1]["type"], "reasoning");
  const OrderedJson after_thought = whole({thinks("a"), both});
  EXPECT_EQ(after_thought["output"][0]["content"][0]["text"], "ahm");
  EXPECT_EQ(after_thought["output"][1]["content"][0]["text"], "!");
  OutputDelta end = calls(0, "", "}");
  end.content = "done";
  const OrderedJson after_call = whole({calls(0, "c", "{"), end});
  EXPECT_EQ(after_call["output"][0]["arguments"], "{}");
  EXPECT_EQ(after_call["output"][1]["content"][0]["text"], "done");
}

TEST_F(ResponsesResponseTest, AnEndByLengthIsIncomplete) {
  const Made made = stream({says("a"), says("b")}, FinishReason::kLength);
  EXPECT_EQ(made.events.back()["type"], "response.incomplete");
  EXPECT_EQ(made.answer["status"], "incomplete");
  EXPECT_EQ(made.answer["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(made.answer["output"][0]["status"], "incomplete");
  EXPECT_TRUE(made.answer["completed_at"].is_null());
}

TEST_F(ResponsesResponseTest, ACallWhoseArgumentsBreakOffIsIncompleteAndTheNextTurnGoesOnWithoutIt) {
  for (const char* whole_arguments : {"{}", "{\"a\": 1}", ""})
    EXPECT_EQ(whole({calls(0, "c0", whole_arguments)})["output"][0]["status"], "completed");
  for (const char* broken : {"{\"a\"", "[1]", "{\"a\": 1, \"a\": 2}"})
    EXPECT_EQ(whole({calls(0, "c0", broken)})["output"][0]["status"], "incomplete") << broken;
  const Made made = stream({calls(0, "c0", "{\"a\""), says("So")});
  EXPECT_EQ(made.answer["status"], "completed");
  EXPECT_EQ(made.answer["output"][0]["status"], "incomplete");
  EXPECT_EQ(made.answer["output"][1]["status"], "completed");
  const ResponsesContext next{model_, store_, 5, "resp_" + std::string(32, 'f')};
  const auto request =
      parse_responses_request(test::json(R"({"previous_response_id": ")" + kResponseId + R"(", "input": [
          {"type": "function_call_output", "call_id": "c0", "output": "no JSON"},
          {"role": "user", "content": "go on"}]})"),
                              next);
  EXPECT_EQ(request.chat.context["messages"].dump(),
            R"([{"role":"user","content":"hi"},{"role":"assistant","content":"So"},)"
            R"({"role":"user","content":"go on"}])");
}

TEST_F(ResponsesResponseTest, AnAbortIsAFailure) {
  for (const FinishReason reason : {FinishReason::kAbort, FinishReason::kTimeout}) {
    const Made made = stream({says("a"), says("b")}, reason);
    EXPECT_EQ(made.events.back()["type"], "response.failed");
    EXPECT_EQ(made.answer["error"]["code"], "server_error");
    EXPECT_EQ(whole({says("a")}, reason)["status"], "failed");
  }
}

TEST_F(ResponsesResponseTest, AFailureBehindTheFirstEventIsToldTwice) {
  const auto response = make("\"stream\": true", {says("a"), says("b")});
  std::string text;
  test::Player(tokens(1, FinishReason::kNone)).play([&](const RequestUpdate& update) {
    text += response->events(0, update);
  });
  text += response->failure_events(ApiError(400, "max_tokens is bad", "max_tokens"));
  const std::vector<OrderedJson> events = parse_events(text);
  ASSERT_GE(events.size(), 3U);
  const OrderedJson& error = events[events.size() - 2];
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["param"], "max_output_tokens");
  EXPECT_EQ(error["message"], "max_output_tokens is bad");
  EXPECT_EQ(error["code"], "BadRequestError");
  const OrderedJson& failed = events.back()["response"];
  EXPECT_EQ(events.back()["type"], "response.failed");
  EXPECT_EQ(failed["status"], "failed");
  EXPECT_EQ(failed["error"]["code"], "invalid_prompt");
  EXPECT_EQ(failed["output"][0]["status"], "incomplete");
  for (std::size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
}

TEST_F(ResponsesResponseTest, NothingComesBeforeTheFirstToken) {
  const auto response = make("\"stream\": true", {{}, says("a")});
  RequestOutput none = request_output("hi", {output(0, "", FinishReason::kNone)});
  EXPECT_EQ(
      response->events(
          0, {.request = none, .output = none.outputs[0], .new_text = "", .finished = false, .logits = {}}),
      "");
}

TEST_F(ResponsesResponseTest, LogprobsStandWithTheirText) {
  const std::string fields = R"("include": ["message.output_text.logprobs"], "top_logprobs": 1)";
  // A token of reasoning, one whose text comes with the next, a text, a call.
  const Made made = stream({thinks("t"), {}, says("ab"), says("c"), calls(0, "i", "{}")}, FinishReason::kStop,
                           fields, true);
  const OrderedJson& logprobs = made.answer["output"][1]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 3U);
  EXPECT_EQ(logprobs[0]["logprob"], -1.5);
  EXPECT_EQ(logprobs[2]["logprob"], -3.5);
  std::vector<std::size_t> counts;
  for (const OrderedJson& event : made.events)
    if (event["type"] == "response.output_text.delta") counts.push_back(event["logprobs"].size());
  EXPECT_EQ(counts, (std::vector<std::size_t>{2, 1}));
  EXPECT_EQ(whole({says("a")})["output"][0]["content"][0]["logprobs"].dump(), "[]");
}

TEST_F(ResponsesResponseTest, ReasoningCanBeLeftOut) {
  const Made made = stream(kTurn, FinishReason::kStop, "\"include_reasoning\": false");
  EXPECT_EQ(made.answer["output"].size(), 3U);
  EXPECT_EQ(made.answer["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
}

TEST_F(ResponsesResponseTest, NoLogprobsOfHiddenReasoningStandWithTheText) {
  const std::string fields = R"("include": ["message.output_text.logprobs"], "include_reasoning": false)";
  const Made made = stream({thinks("t"), thinks("u"), says("a")}, FinishReason::kStop, fields, true);
  const OrderedJson& logprobs = made.answer["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(logprobs.size(), 1U);
  EXPECT_EQ(logprobs[0]["logprob"], -2.5);
}

TEST_F(ResponsesResponseTest, ItsEndIsKeptWithItsKey) {
  const Made made = stream(kTurn);
  EXPECT_EQ(store_.find(kResponseId, 4), nullptr);
  const auto kept = store_.find(kResponseId, 5);
  ASSERT_NE(kept, nullptr);
  OrderedJson answer = OrderedJson::parse(*kept->answer);
  EXPECT_EQ(answer["output"].dump(), "[]");
  answer["output"] = OrderedJson::parse(*kept->items.back());
  EXPECT_EQ(answer, made.answer);
  EXPECT_EQ(OrderedJson::parse(*kept->items.front())[0]["content"][0]["text"], "hi");
  EXPECT_TRUE(store_.erase(kResponseId, 5));
  stream(kTurn, FinishReason::kStop, "\"store\": false");
  EXPECT_EQ(store_.find(kResponseId, 5), nullptr);
}

TEST_F(ResponsesResponseTest, IdsOfInputAndOutputDiffer) {
  const Made made = stream(kTurn);
  const std::string input = OrderedJson::parse(*store_.find(kResponseId, 5)->items.front())[0]["id"];
  EXPECT_EQ(input.substr(4), kResponseId.substr(5) + "0000");
  EXPECT_EQ(made.answer["output"][1]["id"], "msg_" + kResponseId.substr(5) + "0002");
}

TEST_F(ResponsesResponseTest, LongInstructionsStandInTheLastEventAlone) {
  const std::string text(100000, 'i');
  const Made made = stream({says("a")}, FinishReason::kStop, "\"instructions\": \"" + text + "\"");
  EXPECT_TRUE(made.events[0]["response"]["instructions"].is_null());
  EXPECT_EQ(made.events[0]["response"]["store"], true);
  EXPECT_EQ(made.answer["instructions"], text);
  EXPECT_EQ(stream({says("a")}, FinishReason::kStop, "\"instructions\": \"i\"")
                .events[1]["response"]["instructions"],
            "i");
}

}  // namespace
}  // namespace quire::server
