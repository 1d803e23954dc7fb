#include "response_fixtures.h"
#include "server/messages.h"

namespace quire::server {
namespace {

using test::head;
using test::output;
using test::request_output;
using test::ScriptedParser;

OutputDelta said(std::string text) { return {.content = std::move(text), .reasoning = {}, .tool_calls = {}}; }
OutputDelta thought(std::string text) {
  return {.content = {}, .reasoning = std::move(text), .tool_calls = {}};
}
OutputDelta called(int index, std::string id, std::string name, std::string arguments) {
  return {.content = {},
          .reasoning = {},
          .tool_calls = {{index, std::move(id), std::move(name), std::move(arguments)}}};
}

std::unique_ptr<Response> response_to(const std::string& fields, const std::vector<OutputDelta>& deltas) {
  const auto request = parse_chat_request(
      parse_body(R"({"messages": [{"role": "user", "content": "hi"}])" + fields + "}"), test::served_model());
  return make_messages_response(head("msg_1"), request, "req-1",
                                [&] { return std::make_unique<ScriptedParser>(deltas); });
}

RequestOutput ended(const std::vector<OutputDelta>& deltas, FinishReason reason = FinishReason::kStop) {
  return request_output("hello", {output(0, std::string(deltas.size(), 'x'), reason)}, 2);
}

OrderedJson message_of(const std::vector<OutputDelta>& deltas, const RequestOutput& whole,
                       const std::string& fields = "") {
  const auto response = response_to(fields, deltas);
  test::Player(whole).play([&](const RequestUpdate& update) { response->events(0, update); });
  return response->body({&whole, 1});
}
OrderedJson message_of(const std::vector<OutputDelta>& deltas, FinishReason reason = FinishReason::kStop) {
  return message_of(deltas, ended(deltas, reason));
}

// The events' data; of each, that its name is its type.
std::vector<OrderedJson> events_of(const std::vector<OutputDelta>& deltas, const RequestOutput& whole,
                                   const std::string& fields = "") {
  const auto response = response_to(", \"stream\": true" + fields, deltas);
  std::string text;
  test::Player(whole).play([&](const RequestUpdate& update) { text += response->events(0, update); });
  text += response->last_events({});
  std::vector<OrderedJson> events;
  while (!text.empty()) {
    const std::size_t line = text.find('\n');
    const std::size_t end = text.find("\n\n");
    events.push_back(test::json(text.substr(line + 7, end - line - 7)));
    EXPECT_EQ(text.substr(0, line + 7), "event: " + events.back()["type"].get<std::string>() + "\ndata: ");
    text.erase(0, end + 2);
  }
  return events;
}

// As clients put a stream together.
OrderedJson joined(const std::vector<OrderedJson>& events) {
  OrderedJson message;
  std::string input;
  for (const OrderedJson& event : events) {
    const std::string type = event["type"];
    if (type == "message_start") message = event["message"];
    if (type == "content_block_start") {
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
    }
    if (type == "content_block_delta") {
      EXPECT_EQ(event["index"].get<std::size_t>() + 1, message["content"].size());
      for (const auto& [name, value] : event["delta"].items()) {
        OrderedJson& block = message["content"].back();
        if (name == "partial_json") input += value.get<std::string>();
        if (name != "partial_json" && name != "type")
          block[name] = block[name].get<std::string>() + value.get<std::string>();
      }
    }
    if (type == "content_block_stop" && !input.empty())
      message["content"].back()["input"] = test::json(std::exchange(input, {}));
    if (type == "message_delta") {
      message.update(event["delta"]);
      message["usage"].update(event["usage"]);
    }
  }
  return message;
}

TEST(MessageTest, IsWhatClientsRead) {
  EXPECT_EQ(to_line(message_of({said("o"), said("k")})),
            R"({"id":"msg_1","type":"message","role":"assistant","model":"toy",)"
            R"("content":[{"type":"text","text":"ok"}],"stop_reason":"end_turn","stop_sequence":null,)"
            R"("usage":{"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,)"
            R"("output_tokens":2}})");
}

TEST(MessageTest, BlocksStandInTheOrderInWhichTheyCame) {
  const auto body =
      message_of({thought("why"), thought("?"), said("so"), called(0, "c1", "f", R"({"b": 1, )"),
                  called(0, "", "", R"("a": [2]})"), called(1, "c2", "g", "{}"), said("yes")});
  EXPECT_EQ(body["content"].dump(),
            R"([{"type":"thinking","thinking":"why?","signature":"msg_1"},{"type":"text","text":"so"},)"
            R"({"type":"tool_use","id":"c1","name":"f","input":{"b":1,"a":[2]}},)"
            R"({"type":"tool_use","id":"c2","name":"g","input":{}},{"type":"text","text":"yes"}])");
  EXPECT_EQ(body["stop_reason"], "tool_use");
  EXPECT_EQ(body["usage"]["output_tokens_details"].dump(), R"({"thinking_tokens":2})");
}

TEST(MessageTest, WhatEndsACallStandsBeforeWhatComesWithIt) {
  OutputDelta both = called(0, "", "", "1}");
  both.content = "and";
  both.tool_calls.push_back({1, "c2", "g", "{}"});
  const auto body = message_of({called(0, "c1", "f", "{\"a\":"), both});
  EXPECT_EQ(body["content"].dump(),
            R"([{"type":"tool_use","id":"c1","name":"f","input":{"a":1}},{"type":"text","text":"and"},)"
            R"({"type":"tool_use","id":"c2","name":"g","input":{}}])");
}

TEST(MessageTest, ArgumentsThatAreNoObjectAreKeptInOne) {
  const auto input = [](const std::string& arguments) {
    return message_of({called(0, "c", "f", arguments)}, FinishReason::kLength)["content"][0]["input"].dump();
  };
  EXPECT_EQ(input(R"({"a": "b)"), R"({"INVALID_JSON":"{\"a\": \"b"})");
  EXPECT_EQ(input("[1]"), R"({"INVALID_JSON":"[1]"})");
  EXPECT_EQ(input(""), "{}");
}

TEST(MessageTest, TheReasonOfItsEndIsNamed) {
  EXPECT_EQ(message_of({said("a")}, FinishReason::kLength)["stop_reason"], "max_tokens");
  EXPECT_EQ(message_of({said("a")}, FinishReason::kAbort)["stop_reason"], "max_tokens");
  EXPECT_EQ(message_of({called(0, "c", "f", "{")}, FinishReason::kLength)["stop_reason"], "max_tokens");
  RequestOutput stopped = ended({said("a")});
  stopped.outputs[0].stop_reason = std::string("END");
  const auto body = message_of({said("a")}, stopped);
  EXPECT_EQ(body["stop_reason"], "stop_sequence");
  EXPECT_EQ(body["stop_sequence"], "END");
  stopped.outputs[0].stop_reason = std::int32_t{7};
  EXPECT_EQ(message_of({said("a")}, stopped)["stop_reason"], "end_turn") << "a token is no sequence";
}

TEST(MessageTest, AlwaysHasABlock) {
  EXPECT_EQ(message_of({OutputDelta()})["content"].dump(), R"([{"type":"text","text":""}])");
  EXPECT_EQ(joined(events_of({OutputDelta()}, ended({OutputDelta()})))["content"].dump(),
            R"([{"type":"text","text":""}])");
}

TEST(MessageTest, ThinkingMayBeLeftOutButForItsBlock) {
  const std::vector<OutputDelta> deltas = {thought("why"), said("so")};
  const auto body = message_of(deltas, ended(deltas), R"(, "include_reasoning": false)");
  EXPECT_EQ(body["content"].dump(), R"([{"type":"thinking","thinking":"","signature":"msg_1"},)"
                                    R"({"type":"text","text":"so"}])");
}

TEST(MessageStreamTest, IsToTheByteWhatClientsRead) {
  const std::vector<OutputDelta> deltas = {OutputDelta(), called(0, "c", "f", "{}")};
  std::string lines;
  for (const OrderedJson& event : events_of(deltas, ended(deltas))) lines += to_line(event) + "\n";
  EXPECT_EQ(
      lines,
      R"({"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","model":"toy",)"
      R"("content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":3,)"
      R"("cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":1}}})"
      "\n"
      R"({"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"c","name":"f",)"
      R"("input":{}}})"
      "\n"
      R"({"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{}"}})"
      "\n"
      R"({"type":"content_block_stop","index":0})"
      "\n"
      R"({"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":)"
      R"({"input_tokens":3,"cache_creation_input_tokens":0,"cache_read_input_tokens":2,"output_tokens":2}})"
      "\n"
      R"({"type":"message_stop"})"
      "\n");
}

TEST(MessageStreamTest, JoinedItIsTheWholeAnswer) {
  const std::vector<OutputDelta> deltas = {thought("why"),
                                           thought("?"),
                                           said("s"),
                                           said("o"),
                                           called(0, "c1", "f", "{\"a\""),
                                           called(0, "", "", ": 1}"),
                                           called(1, "c2", "g", "{}"),
                                           said("yes")};
  for (const char* fields : {"", R"(, "include_reasoning": false)"}) {
    const RequestOutput whole = ended(deltas);
    EXPECT_EQ(joined(events_of(deltas, whole, fields)), message_of(deltas, whole, fields));
  }
}

TEST(MessageStreamTest, NothingComesBeforeTheFirstToken) {
  const auto response = response_to(", \"stream\": true", {});
  const RequestOutput waiting = request_output("hi", {CompletionOutput()});
  EXPECT_EQ(response->events(0, {.request = waiting,
                                 .output = waiting.outputs[0],
                                 .new_text = {},
                                 .finished = false,
                                 .logits = {}}),
            "");
}

TEST(MessageStreamTest, AFailureIsAnEventOfItsOwn) {
  EXPECT_EQ(
      response_to(", \"stream\": true", {})->failure_events({500, "broken"}),
      "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"broken\"},"
      "\"request_id\":\"req-1\"}\n\n");
}

TEST(AnthropicErrorTest, HasTheTypeOfItsStatus) {
  const auto type = [](int status) {
    return anthropic_error({status, "x"}, "r")["error"]["type"].get<std::string>();
  };
  EXPECT_EQ(type(400), "invalid_request_error");
  EXPECT_EQ(type(401), "authentication_error");
  EXPECT_EQ(type(403), "permission_error");
  EXPECT_EQ(type(404), "not_found_error");
  EXPECT_EQ(type(405), "invalid_request_error");
  EXPECT_EQ(type(413), "request_too_large");
  EXPECT_EQ(type(429), "rate_limit_error");
  EXPECT_EQ(type(500), "api_error");
  EXPECT_EQ(type(503), "overloaded_error");
}

TEST(AnthropicErrorTest, NamesFieldsAsTheClientDoes) {
  const auto message = [](const std::string& text) {
    return anthropic_error({400, text}, "r")["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message("stop has 17 entries"), "stop_sequences has 17 entries");
  for (const char* other : {"stop_token_ids is 3", "tool_choice names \"stop\", which is none of the tools",
                            "stop is not supported", "continue_final_message is not supported"})
    EXPECT_EQ(message(other), other);
  EXPECT_EQ(message("stop_token_ids has 7"), "stop_token_ids has 7");
  EXPECT_EQ(message("continue_final_message: the template"), "messages: the template");
  EXPECT_EQ(message("tools: at /tools/0/function/parameters/type"), "tools: at /tools/0/input_schema/type");
}

// Agents read the numbers out of these sentences.
TEST(AnthropicErrorTest, WhatDoesNotFitIsSaidAsClientsKnowIt) {
  const ServedModel model = test::served_model();  // of 64 tokens
  const auto message = [&](std::size_t prompt, int max_tokens) {
    ApiRequest request;
    request.max_tokens = max_tokens;
    const ApiError error =
        test::error_of([&] { make_engine_request(request, std::vector<TokenId>(prompt, 1), model); });
    return anthropic_error(error, "r")["error"]["message"].get<std::string>();
  };
  EXPECT_EQ(message(60, 10),
            "input length and `max_tokens` exceed context limit: 60 + 10 > 64, decrease input length or "
            "`max_tokens` and try again");
  EXPECT_EQ(message(70, 10), "prompt is too long: 70 tokens > 64 maximum");
}

}  // namespace
}  // namespace quire::server
