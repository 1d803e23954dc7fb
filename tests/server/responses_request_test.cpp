#include <functional>

#include "protocol_fixtures.h"
#include "server/response_items.h"
#include "server/responses.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kId = "resp_0123456789abcdef0123456789abcdef";

class ResponsesRequestTest : public ::testing::Test {
 protected:
  ResponsesRequest parse(const std::string& body, std::size_t key = 0) {
    return parse_responses_request(parse_body(body), {model_, store_, key, kId});
  }
  ResponsesRequest parse_input(const std::string& input) { return parse(R"({"input": )" + input + "}"); }
  std::string messages(const std::string& body) { return parse(body).chat.context["messages"].dump(); }
  std::string messages_of(const std::string& input) { return messages(R"({"input": )" + input + "}"); }
  OrderedJson echo(const std::string& fields) {
    return OrderedJson::parse(parse(R"({"input": "a", )" + fields + "}").echo);
  }
  // As the client reads it; its status, param and message.
  ApiError refused(const std::string& body) {
    const ApiError error = test::error_of([&] { parse(body); });
    const OrderedJson said = responses_error(error, "")["error"];
    return {error.status, said["message"], said["param"].is_null() ? "" : said["param"], error.code};
  }
  void expect_refused(const std::string& fields, const std::string& param, const std::string& message) {
    const ApiError error =
        refused(fields.find("\"input\"") == std::string::npos ? R"({"input": "a", )" + fields + "}"
                                                              : "{" + fields + "}");
    EXPECT_EQ(error.status, 400) << fields;
    EXPECT_EQ(error.param, param) << fields;
    EXPECT_THAT(error.what(), HasSubstr(message)) << fields;
  }

  ServedModel model_ = test::served_model();
  ResponseStore store_{1 << 20};
};

TEST_F(ResponsesRequestTest, AnInputOfTextIsAMessageOfTheUser) {
  EXPECT_EQ(messages_of("\"hi\""), R"([{"role":"user","content":"hi"}])");
  EXPECT_EQ(messages(R"({"instructions": "Be brief.", "input": "hi"})"),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}])");
}

TEST_F(ResponsesRequestTest, MessagesComeEasyOrWithParts) {
  EXPECT_EQ(
      messages_of(R"([{"role": "user", "content": "a"},
                            {"type": "message", "role": "assistant", "status": "completed", "id": "msg_1",
                             "content": [{"type": "output_text", "text": "b", "annotations": []}]},
                            {"type": "message", "role": "user",
                             "content": [{"type": "input_text", "text": "c"}, {"type": "input_text", "text": "d"}]}])"),
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c\nd"}])");
}

TEST_F(ResponsesRequestTest, SystemMessagesSideBySideAreOne) {
  EXPECT_EQ(
      messages(R"({"instructions": "a", "input": [{"role": "developer", "content": "b"},
                         {"role": "system", "content": "c"}, {"role": "user", "content": "d"},
                         {"role": "system", "content": "e"}]})"),
      R"([{"role":"system","content":"a\nb\nc"},{"role":"user","content":"d"},{"role":"system","content":"e"}])");
}

TEST_F(ResponsesRequestTest, WhatTheModelWroteInOneTurnIsOneMessage) {
  const std::string turn = R"(
      {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "no"}],
       "content": [{"type": "reasoning_text", "text": "why"}, {"type": "reasoning_text", "text": "so"}]},
      {"role": "assistant", "content": "b"},
      {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"x\": 1}"},
      {"type": "function_call", "call_id": "c2", "name": "g", "arguments": ""},
      {"type": "function_call_output", "call_id": "c1", "output": "one"},
      {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]})";
  EXPECT_EQ(
      messages_of(R"([{"role": "user", "content": "a"}, )" + turn + "]"),
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b","reasoning":"why\nso",)"
      R"("reasoning_content":"why\nso","tool_calls":[)"
      R"({"id":"c1","type":"function","function":{"name":"f","arguments":{"x":1}}},)"
      R"({"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"one","tool_call_id":"c1"},{"role":"tool","content":"two","tool_call_id":"c2"}])");
  // What comes behind calls, or reasoning behind a text, is another message.
  const OrderedJson two = parse_input(R"([{"role": "assistant", "content": "a"},
      {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"role": "assistant", "content": "d"}])")
                              .chat.context["messages"];
  ASSERT_EQ(two.size(), 3U);
  EXPECT_EQ(two[1]["reasoning"], "b");
  EXPECT_EQ(two[1]["tool_calls"].size(), 1U);
}

TEST_F(ResponsesRequestTest, ReasoningWithoutATextIsNothing) {
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": "a"},
      {"type": "reasoning", "summary": [], "encrypted_content": "gAAA", "content": null}])"),
            R"([{"role":"user","content":"a"}])");
}

TEST_F(ResponsesRequestTest, ACallThatWasCutOffIsLeftOut) {
  EXPECT_EQ(messages_of(R"([{"role": "user", "content": "a"},
      {"type": "function_call", "status": "incomplete", "call_id": "c", "name": "f", "arguments": "{\"x"}])"),
            R"([{"role":"user","content":"a"}])");
}

TEST_F(ResponsesRequestTest, WhatCameOfACallThatWasCutOffIsLeftOutToo) {
  const std::string begin = R"([{"role": "user", "content": "a"},
      {"type": "function_call", "status": "incomplete", "call_id": "c", "name": "f", "arguments": "{\"x"}, )";
  const std::string output = R"({"type": "function_call_output", "call_id": "c", "output": "bad"}])";
  EXPECT_EQ(messages_of(begin + output), R"([{"role":"user","content":"a"}])");
  const std::string again = R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, )";
  const OrderedJson read = parse_input(begin + again + output).chat.context["messages"];
  ASSERT_EQ(read.size(), 3U) << "the id of a later call";
  EXPECT_EQ(read[2]["content"], "bad");
}

TEST_F(ResponsesRequestTest, FieldsReachTheChat) {
  const ChatRequest chat = parse(R"({"input": "a", "max_output_tokens": 7, "temperature": 0.5, "top_k": 3,
      "seed": 9, "stop": ["x"], "min_p": 0.1, "repetition_penalty": 1.5, "priority": 4, "cache_salt": "s",
      "reasoning": {"effort": "low", "summary": "auto"}, "include": ["message.output_text.logprobs"],
      "top_logprobs": 2, "parallel_tool_calls": false, "stream": true, "stream_options": {"include_obfuscation": false},
      "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"},
                 "strict": true, "defer_loading": false}]})")
                               .chat;
  EXPECT_EQ(chat.max_tokens, 7);
  EXPECT_EQ(chat.params.temperature, 0.5F);
  EXPECT_EQ(chat.params.top_k, 3);
  EXPECT_EQ(chat.params.seed, 9U);
  EXPECT_EQ(chat.params.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(chat.priority, 4);
  EXPECT_EQ(chat.cache_salt, "s");
  EXPECT_EQ(chat.params.logprobs, 2);
  EXPECT_TRUE(chat.stream && chat.one_tool_call && chat.strict_tools);
  EXPECT_EQ(chat.context["reasoning_effort"], "low");
  EXPECT_EQ(
      chat.context["tools"].dump(),
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"},"strict":true}}])");
}

TEST_F(ResponsesRequestTest, LogprobsComeWhereTheyAreIncludedAlone) {
  EXPECT_EQ(parse(R"({"input": "a", "top_logprobs": 3})").chat.params.logprobs, std::nullopt);
  expect_refused(R"("top_logprobs": 21)", "top_logprobs", "from 0 to 20");
}

TEST_F(ResponsesRequestTest, ToolsAreChosen) {
  const std::string tools =
      R"({"input": "a", "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}],
                                "tool_choice": )";
  EXPECT_TRUE(parse(tools + "\"required\"}").chat.require_call);
  EXPECT_FALSE(parse(tools + "\"none\"}").chat.parse_tools);
  EXPECT_EQ(parse(tools + R"({"type": "function", "name": "g"}})").chat.only_tool, "g");
  const ChatRequest some =
      parse(tools +
            R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]}})")
          .chat;
  EXPECT_TRUE(some.require_call);
  ASSERT_EQ(some.context["tools"].size(), 1U);
  EXPECT_EQ(some.context["tools"][0]["function"]["name"], "g");
  for (const char* choice :
       {R"({"type": "function", "name": "h"})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]})"}) {
    const ApiError error = refused(tools + choice + "}");
    EXPECT_EQ(error.param, "tool_choice");
    EXPECT_THAT(error.what(), HasSubstr("\"h\", which is none of the tools"));
  }
  EXPECT_EQ(refused(tools + R"({"type": "mcp", "server_label": "s"}})").param, "tool_choice.type");
}

TEST_F(ResponsesRequestTest, TheAnswerEchoesNumbersAndFlagsAsSuchWhereTheyCameAsTexts) {
  const OrderedJson asked =
      echo(R"("max_output_tokens": "7", "parallel_tool_calls": 0, "top_logprobs": "2")");
  EXPECT_EQ(asked["max_output_tokens"], 7);
  EXPECT_EQ(asked["parallel_tool_calls"], OrderedJson(false));
  EXPECT_EQ(asked["top_logprobs"], 2);
}

TEST_F(ResponsesRequestTest, TheAnswerEchoesWhatWasAsked) {
  const OrderedJson plain = echo("\"n\": 1");
  EXPECT_EQ(plain["text"].dump(), R"({"format":{"type":"text"}})");
  EXPECT_EQ(plain["tool_choice"], "auto");
  EXPECT_EQ(plain["parallel_tool_calls"], true);
  EXPECT_EQ(plain["top_logprobs"], 0);
  EXPECT_EQ(plain["metadata"].dump(), "{}");
  EXPECT_EQ(plain["store"], true);
  EXPECT_EQ(echo("\"temperature\": 0.7, \"store\": false")["temperature"].dump(), "0.7");
  EXPECT_EQ(echo("\"store\": false")["store"], false);
  EXPECT_EQ(echo(R"("text": {"verbosity": "low"})")["text"].dump(),
            R"({"verbosity":"low","format":{"type":"text"}})");
  EXPECT_EQ(echo(R"("text": {"format": null})")["text"].dump(), R"({"format":{"type":"text"}})");
}

TEST_F(ResponsesRequestTest, WhatIsWrongIsSaidInItsOwnFields) {
  for (const char* name : {"background", "conversation", "prompt", "max_tool_calls"})
    expect_refused("\"" + std::string(name) + "\": 1", name, std::string(name) + " is not supported");
  expect_refused(R"("truncation": "auto")", "truncation", "truncation is \"auto\", which is not supported");
  expect_refused(R"("tools": [{"type": "web_search"}])", "tools[0].type", "tools[0].type is \"web_search\"");
  expect_refused(R"("tools": [{"type": "function"}])", "tools[0].name", "tools[0].name is missing");
  expect_refused(R"("tools": [{"type": "function", "name": "f", "parameters": 1}])", "tools[0].parameters",
                 "tools[0].parameters is 1");
  expect_refused(R"("max_output_tokens": 0)", "max_output_tokens", "max_output_tokens is 0");
  expect_refused(R"("reasoning": {"effort": "huge"})", "reasoning.effort", "reasoning.effort is \"huge\"");
  expect_refused(R"("response_format": {"type": "json_object"})", "text.format",
                 "\"response_format\" is text.format here");
  expect_refused(R"("text": {"format": {"type": "xml"}})", "text.format", "text.format of type \"xml\"");
  expect_refused(R"("text": {"format": {"type": "json_schema"}})", "text.format.schema",
                 "text.format.schema is missing");
  expect_refused(R"("text": {"format": {"type": "json_schema", "schema": {}, "x": 1}})", "text.format",
                 "has \"x\"");
  expect_refused(R"("text": {"format": {"type": "json_object"}}, "guided_json": {})", "guided_json",
                 "guided_json and text.format exclude each other");
  expect_refused(R"("n": 2)", "n", "n is 2");
  expect_refused(R"("include": ["x"])", "include[0]", "include[0] is \"x\"");
  expect_refused(R"("user": 3)", "user", "user is 3");
  expect_refused(R"("input": 3)", "input", "a string or a list of items");
  expect_refused(R"("input": [])", "input", "input is empty");
  EXPECT_EQ(refused("{}").param, "input");
}

TEST_F(ResponsesRequestTest, MetadataIsBounded) {
  std::string pairs = R"("k0": "")";
  for (int i = 1; i < 17; ++i) pairs += ", \"k" + std::to_string(i) + "\": \"\"";
  expect_refused("\"metadata\": {" + pairs + "}", "metadata", "17 pairs");
  const std::string key(64, 'k');
  std::string value;
  for (int i = 0; i < 512; ++i) value += "é";
  EXPECT_EQ(echo("\"metadata\": {\"" + key + "\": \"" + value + "\"}")["metadata"][key], value);
  expect_refused("\"metadata\": {\"" + key + "k\": \"\"}", "metadata", "64 characters");
  expect_refused("\"metadata\": {\"k\": \"" + value + "e\"}", "metadata", "512");
  expect_refused(R"("metadata": {"k": 1})", "metadata.\"k\"", "must be a string");
}

TEST_F(ResponsesRequestTest, HostileItemsAreNamed) {
  const std::pair<const char*, const char*> kItems[] = {
      {"3", "input[1]"},
      {"[]", "input[1]"},
      {"{}", "input[1].role"},
      {R"({"type": 3})", "input[1].type"},
      {R"({"type": "web_search_call", "id": "a"})", "input[1].type"},
      {R"({"role": "tool", "content": "a"})", "input[1].role"},
      {R"({"role": "user"})", "input[1].content"},
      {R"({"role": "user", "content": {"a": 1}})", "input[1].content"},
      {R"({"role": "user", "content": [3]})", "input[1].content[0]"},
      {R"({"role": "user", "content": [{"type": "input_image"}]})", "input[1].content[0].type"},
      {R"({"role": "user", "content": [{"type": "input_text"}]})", "input[1].content[0].text"},
      {R"({"type": "reasoning", "content": "a"})", "input[1].content"},
      {R"({"type": "reasoning", "summary": [{"text": 3}]})", "input[1].summary[0].text"},
      {R"({"type": "function_call", "name": "f", "arguments": "{}"})", "input[1].call_id"},
      {R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": {}})", "input[1].arguments"},
      {R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "[1"})", "input[1].arguments"},
      {R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "3"})", "input[1].arguments"},
      {R"({"type": "function_call_output", "call_id": "c"})", "input[1].output"},
      {R"({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file"}]})",
       "input[1].output[0].type"},
      {R"({"type": "item_reference"})", "input[1].id"}};
  for (const auto& [item, place] : kItems) {
    const ApiError error =
        refused(R"({"input": [{"role": "user", "content": "a"}, )" + std::string(item) + "]}");
    EXPECT_EQ(error.status, 400) << item;
    EXPECT_EQ(error.param, place) << item;
    EXPECT_THAT(error.what(), StartsWith(place)) << item;
  }
  std::string deep = "{}";
  for (int i = 0; i < 70; ++i) deep = R"({"a": )" + deep + "}";
  EXPECT_EQ(refused(R"({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": )" +
                    OrderedJson(deep).dump() + "}]}")
                .param,
            "input[0].arguments");
}

TEST_F(ResponsesRequestTest, AHugeConversationIsRefused) {
  const std::string item = R"({"role":"user","content":""},)";
  std::string items;
  for (int i = 0; i < 200000; ++i) items += item;
  items.back() = ']';
  expect_refused("\"input\": [" + items, "input", "the conversation has more than");
  expect_refused("\"user\": \"" + std::string(5 << 20, 'x') + "\"", "", "beside its input");
}

class StoredConversationTest : public ResponsesRequestTest {
 protected:
  static constexpr const char* kTurn =
      R"([{"id": "msg_0123456789abcdef0123456789abcdef0001", "type": "message", "status": "completed",
           "role": "assistant", "content": [{"type": "output_text", "text": "b"}]}])";
  void SetUp() override {
    ResponsesRequest first = parse(R"({"instructions": "I", "input": "a"})");
    store_.put(kId, 7, "{}", {}, first.input, kTurn);
  }
  ApiError refused_for(std::size_t key, const std::string& fields) {
    return test::error_of([&] { parse("{" + fields + "}", key); });
  }
};

TEST_F(StoredConversationTest, ComesBeforeTheNewInputWithoutItsInstructions) {
  const ResponsesRequest next =
      parse(R"({"previous_response_id": ")" + kId + R"(", "instructions": "J", "input": "c"})", 7);
  EXPECT_EQ(next.chat.context["messages"].dump(),
            R"([{"role":"system","content":"J"},{"role":"user","content":"a"},)"
            R"({"role":"assistant","content":"b"},{"role":"user","content":"c"}])");
  EXPECT_EQ(next.earlier.size(), 2U);
  EXPECT_EQ(next.num_items, 1U);
  EXPECT_EQ(OrderedJson::parse(next.input)[0]["content"][0]["text"], "c");
  EXPECT_TRUE(parse(R"({"previous_response_id": ")" + kId + R"(", "input": "c", "store": false})", 7)
                  .earlier.empty());
}

TEST_F(StoredConversationTest, IsAbsentForOtherKeys) {
  const ApiError error = refused_for(8, R"("input": "c", "previous_response_id": ")" + kId + "\"");
  EXPECT_EQ(error.status, 404);
  EXPECT_EQ(error.code, "previous_response_not_found");
  EXPECT_EQ(error.param, "previous_response_id");
  const std::string item =
      R"("input": [{"type": "item_reference", "id": "msg_0123456789abcdef0123456789abcdef0001"}])";
  EXPECT_EQ(refused_for(8, item).status, 404);
  EXPECT_EQ(refused_for(7, item).status, 0);
}

TEST_F(StoredConversationTest, ItemsAreReferredTo) {
  const ResponsesRequest made = parse(
      R"({"input": [{"type": "item_reference", "id": "msg_0123456789abcdef0123456789abcdef0000"},
                    {"id": "msg_0123456789abcdef0123456789abcdef0001"}, {"role": "user", "content": "c"}]})",
      7);
  EXPECT_EQ(
      made.chat.context["messages"].dump(),
      R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}])");
  for (const char* id : {"", "x", "_", "msg_", "msg_0123456789abcdef0123456789abcdef0002", "rs_999"}) {
    const ApiError error =
        refused_for(7, R"("input": [{"type": "item_reference", "id": ")" + std::string(id) + "\"}]");
    EXPECT_EQ(error.status, 404) << id;
    EXPECT_EQ(error.param, "input[0]") << id;
  }
}

TEST_F(StoredConversationTest, ReferencesToMuchThatIsKeptAreRefused) {
  ResponseStore large(std::size_t{1} << 30);
  std::string input = "[";
  for (int i = 0; i < 20; ++i) {
    const std::string id = format_text("resp_{:032}", i);
    const OrderedJson item = {{"id", item_id("message", id, 0)},
                              {"type", "message"},
                              {"role", "user"},
                              {"content", {{{"type", "input_text"}, {"text", "a"}}}}};
    const OrderedJson other = {{"id", item_id("message", id, 1)}, {"text", std::string(1 << 20, 'b')}};
    large.put(id, 0, "{}", {}, OrderedJson::array({item, other}).dump(), "[]");
    input += (i == 0 ? "" : ",") + OrderedJson{{"id", item["id"]}}.dump();
  }
  const auto parse_from = [&](const std::string& items) {
    return parse_responses_request(parse_body(R"({"input": )" + items + "]}"), {model_, large, 0, kId});
  };
  EXPECT_EQ(parse_from(input.substr(0, input.find(','))).num_items, 1U);
  EXPECT_THAT(test::error_of([&] { parse_from(input); }).what(), HasSubstr("the conversation has more than"));
}

TEST(ItemIdTest, SaysOfWhichResponseItIs) {
  for (const char* type : {"message", "reasoning", "function_call", "function_call_output"})
    for (const std::size_t index : {0U, 65535U, 1000000U})
      EXPECT_EQ(response_of_item(item_id(type, kId, index)), kId);
  EXPECT_NE(item_id("message", kId, 1), item_id("message", kId, 2));
}

}  // namespace
}  // namespace quire::server
