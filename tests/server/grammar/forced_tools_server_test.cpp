// Calls that have to come, through the server, in every dialect: the bundled model knows none of them.
#include <gmock/gmock.h>

#include "server/api_server_fixture.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kForcedTools = R"("tools": [
  {"type": "function", "function": {"name": "move", "parameters": {"type": "object", "additionalProperties": false,
    "required": ["steps", "to"], "properties": {"steps": {"type": "integer", "minimum": 1, "maximum": 9},
    "to": {"enum": ["north", "south"]}, "note": {"type": "string", "maxLength": 8}}}}},
  {"type": "function", "function": {"name": "rest"}}])";

class ForcedToolsServerTest : public ApiServerTest {
 protected:
  void serve(std::string_view dialect, std::string reasoning = "none") {
    server_.reset();
    listen();
    ServiceOptions options;
    options.tool_call_parser = dialect;
    options.reasoning_parser = std::move(reasoning);
    load(small(), {}, options);
  }

  HttpReply post(const std::string& fields) const {
    OrderedJson body = OrderedJson::parse(
        R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 500, "seed": 5, )" +
        std::string(kForcedTools) + "}");
    body.update(OrderedJson::parse("{" + fields + "}"));  // of keys that stand twice, the last
    return ask("/v1/chat/completions", body.dump());
  }
  OrderedJson choices(const std::string& fields) const {
    const HttpReply reply = post(fields);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply).value("choices", OrderedJson::array());
  }
};

void expect_call(const OrderedJson& call) {
  const OrderedJson arguments = OrderedJson::parse(call["function"]["arguments"].get<std::string>());
  if (call["function"]["name"] == "rest") {
    EXPECT_EQ(arguments, OrderedJson::object());
    return;
  }
  EXPECT_EQ(call["function"]["name"], "move");
  EXPECT_TRUE(arguments["steps"] >= 1 && arguments["steps"] <= 9) << arguments;
  EXPECT_TRUE(arguments["to"] == "north" || arguments["to"] == "south") << arguments;
  for (const auto& [key, value] : arguments.items())
    EXPECT_TRUE(key == "steps" || key == "to" || (key == "note" && value.is_string())) << arguments;
}

TEST_F(ForcedToolsServerTest, EveryDialectCallsWhereItHasTo) {
  for (const dialects::ToolDialect& dialect : dialects::tool_dialects()) {
    SCOPED_TRACE(dialect.names.front());
    serve(dialect.names.front());
    for (const OrderedJson& choice :
         choices(R"("tool_choice": "required", "parallel_tool_calls": false, "n": 3)")) {
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
      EXPECT_EQ(choice["message"]["content"], nullptr);
      ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
      expect_call(choice["message"]["tool_calls"][0]);
    }
    const OrderedJson named = choices(R"("tool_choice": {"type": "function",
                                         "function": {"name": "move"}})");
    EXPECT_EQ(named[0]["finish_reason"], "stop");
    ASSERT_EQ(named[0]["message"]["tool_calls"].size(), 1U);
    EXPECT_EQ(named[0]["message"]["tool_calls"][0]["function"]["name"], "move");
    expect_call(named[0]["message"]["tool_calls"][0]);
  }
}

TEST_F(ForcedToolsServerTest, StreamsHaveTheSameCalls) {
  serve("qwen3_coder");
  const std::string fields = R"("tool_choice": "required", "temperature": 0)";
  std::vector<std::string> streamed;
  const std::string body = post(fields + R"(, "stream": true)").body;
  for (std::size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
    const OrderedJson chunk = OrderedJson::parse(body.substr(at + 6, body.find('\n', at) - at - 6));
    const OrderedJson calls = chunk["choices"][0]["delta"].value("tool_calls", OrderedJson::array());
    for (const OrderedJson& call : calls) {
      if (call.contains("id")) streamed.emplace_back();
      ASSERT_EQ(call["index"], streamed.size() - 1);
      streamed.back() +=
          call["function"].value("name", "") + call["function"]["arguments"].get<std::string>();
    }
  }
  std::vector<std::string> whole;
  const OrderedJson answer = choices(fields);
  for (const OrderedJson& call : answer[0]["message"]["tool_calls"])
    whole.push_back(call["function"]["name"].get<std::string>() +
                    call["function"]["arguments"].get<std::string>());
  ASSERT_FALSE(whole.empty());
  EXPECT_EQ(streamed, whole);
}

TEST_F(ForcedToolsServerTest, AnAnswerMayComeInsteadOfCallsThatNobodyAskedFor) {
  serve("hermes");
  const std::string format =
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema":
      {"type": "integer", "minimum": 10, "maximum": 99}}})";
  for (const OrderedJson& choice : choices(format + R"(, "n": 8)")) {
    const OrderedJson& message = choice["message"];
    if (message.contains("tool_calls")) {
      for (const OrderedJson& call : message["tool_calls"]) expect_call(call);
      EXPECT_EQ(message["content"], nullptr);
    } else {
      const int answer = std::stoi(message["content"].get<std::string>());
      EXPECT_TRUE(answer >= 10 && answer <= 99) << answer;
    }
  }
  // Calls that have to come leave no place for one.
  for (const OrderedJson& choice : choices(format + R"(, "tool_choice": "required", "n": 4)"))
    EXPECT_FALSE(choice["message"].value("tool_calls", OrderedJson::array()).empty());
  EXPECT_EQ(choices(R"("parallel_tool_calls": false, "temperature": 0, "max_tokens": 8)")[0]["message"],
            choices(R"("temperature": 0, "max_tokens": 8)")[0]["message"]);
}

TEST_F(ForcedToolsServerTest, StructuralTagsMeanTheSameBesideTools) {
  serve("hermes");
  const auto with_format = [&](const std::string& format, const std::string& fields) {
    return post(R"("response_format": {"type": "structural_tag", )" + format + "}" + fields);
  };
  const std::string older = R"("structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}],
                                "triggers": ["<f>"])";
  for (const std::string fields : {"", R"(, "tools": null)"}) {
    EXPECT_EQ(with_format(older, fields).status, 200);
    EXPECT_EQ(with_format(R"("format": {"type": "const_string", "value": "q"}, "more": 1)", fields).status,
              400);
    const HttpReply wrong = post(R"("structural_tag": "{\"type\": \"x\", \"format\": {}}")" + fields);
    EXPECT_EQ(wrong.status, 400);
    EXPECT_EQ(json_of(wrong)["error"]["param"], "structural_tag") << wrong.body;
    const HttpReply no_json = post(R"("guided_json": "nope")" + fields);
    EXPECT_EQ(no_json.status, 400);
    EXPECT_EQ(json_of(no_json)["error"]["param"], "guided_json") << no_json.body;
  }
}

TEST_F(ForcedToolsServerTest, WhatIsWrongBesideToolsIsCalledByItsName) {
  serve("hermes");
  const auto expect_wrong = [&](const std::string& fields, const std::string& name) {
    const HttpReply reply = post(fields);
    EXPECT_EQ(reply.status, 400) << reply.body;
    EXPECT_EQ(json_of(reply)["error"]["param"], name) << reply.body;
    EXPECT_THAT(json_of(reply)["error"]["message"].get<std::string>(), HasSubstr(name + " is refused: "));
  };
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
                               "parameters": {"properties": {"a": {"uniqueItems": 1}}}}}], )";
  expect_wrong(R"("guided_json": {"items": {"type": "thing"}})", "guided_json");
  expect_wrong(R"("structured_outputs": {"regex": "("})", "structured_outputs.regex");
  expect_wrong(R"("guided_whitespace_pattern": "(", "guided_json": {})", "guided_whitespace_pattern");
  expect_wrong(R"("guided_json": {"type": "integer"}, )" + tools + R"("tool_choice": "auto")", "tools");
}

TEST_F(ForcedToolsServerTest, ReasoningDoesNotBeginWithinAContinuedMessage) {
  serve("none", "qwen3");
  const OrderedJson tokens =
      json_of(ask("/tokenize", R"({"prompt": "<", "add_special_tokens": false})")).at("tokens");
  ASSERT_EQ(tokens.size(), 1U) << tokens;
  const std::string fields = format_text(
      R"("guided_choice": ["yes"], "max_tokens": 9, "temperature": 0, "logit_bias": {{"{}": 100}})",
      tokens[0].get<int>());
  EXPECT_NE(choices(fields)[0]["message"]["content"], "yes");  // it may think
  EXPECT_EQ(choices(fields + R"(, "continue_final_message": true,
                              "messages": [{"role": "assistant", "content": "The"}])")[0]["message"]
                                                                                      ["content"],
            "yes");
}

TEST_F(ForcedToolsServerTest, AnswersStandWhereTheModelHasThem) {
  using Case = std::pair<const char*, const char*>;
  for (const auto& [reasoning, end] :
       {Case("openai_gptoss", "<|end|>"), Case("cohere_command3", "<|END_THINKING|>")}) {
    SCOPED_TRACE(reasoning);
    serve("none", reasoning);
    const OrderedJson thought = {{"role", "assistant"}, {"content", end}};
    const OrderedJson answer = choices(
        R"("guided_choice": ["yes"], "continue_final_message": true, "messages": [)" + thought.dump() + "]");
    EXPECT_EQ(answer[0]["message"]["content"], "yes");
    EXPECT_EQ(answer[0]["message"]["reasoning"], nullptr);
  }
}

TEST_F(ForcedToolsServerTest, ThinkingEndsWhereItsBudgetDoes) {
  serve("hermes", "deepseek_r1");
  const std::string thinks = R"("continue_final_message": true, "max_tokens": 40, "temperature": 0,
                                "messages": [{"role": "assistant", "content": "The"}])";
  const auto ask_for = [&](const std::string& fields) {
    const HttpReply reply = post(thinks + fields);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return json_of(reply);
  };
  const auto reasoning_of = [](const OrderedJson& choice) {
    return choice["message"]["reasoning"].is_null() ? "" : choice["message"]["reasoning"].get<std::string>();
  };
  const std::string whole = reasoning_of(ask_for("")["choices"][0]);
  for (const int budget : {0, 1, 5}) {
    const OrderedJson reply = ask_for(format_text(R"(, "thinking_token_budget": {})", budget));
    const std::string thought = reasoning_of(reply["choices"][0]);
    EXPECT_EQ(reply.value(OrderedJson::json_pointer("/usage/completion_tokens_details/reasoning_tokens"), 0),
              budget);
    EXPECT_TRUE(whole.starts_with(thought) && thought.size() < whole.size()) << thought << "\n" << whole;
    EXPECT_FALSE(reply["choices"][0]["message"]["content"].is_null());
  }
  EXPECT_EQ(reasoning_of(ask_for(R"(, "thinking_token_budget": 1000)")["choices"][0]), whole);
  // Each output by itself, and what is forced is so behind it.
  const OrderedJson forced =
      ask_for(R"(, "thinking_token_budget": 5, "temperature": 1, "n": 4, "max_tokens": 300,
                  "tool_choice": "required", "parallel_tool_calls": false)")["choices"];
  for (const OrderedJson& choice : forced) {
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
    expect_call(choice["message"]["tool_calls"][0]);
    EXPECT_LT(reasoning_of(choice).size(), 80U);
  }
  serve("hermes");
  const HttpReply refused = post(R"("thinking_token_budget": 5)");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(json_of(refused)["error"]["param"], "thinking_token_budget");
}

TEST_F(ForcedToolsServerTest, WhatCannotBeCalledIsTheClientsFault) {
  const auto error = [&](const std::string& fields) {
    const HttpReply reply = post(fields);
    EXPECT_EQ(reply.status, 400) << reply.body;
    return json_of(reply).value("error", OrderedJson());
  };
  serve("none");
  EXPECT_EQ(error(R"("tool_choice": "required")")["param"], "tool_choice");
  serve("qwen3_coder");
  const auto with_schema = [&](const std::string& schema) {
    return error(R"("tool_choice": "required", "tools": [{"type": "function", "function": {"name": "f",
                 "strict": true, "parameters": {"properties": {"a": )" +
                 schema + "}}}}]");
  };
  OrderedJson wrong = with_schema(R"({"type": "string", "pattern": "^a"})");
  EXPECT_EQ(wrong["param"], "tools");
  EXPECT_THAT(wrong["message"].get<std::string>(),
              HasSubstr("/tools/0/function/parameters/properties/a/pattern is not enforced"));
  wrong = with_schema(R"({"type": "array", "items": {"type": "thing"}})");
  EXPECT_THAT(wrong["message"].get<std::string>(),
              AllOf(HasSubstr("refused"),
                    HasSubstr(R"(schema at "/tools/0/function/parameters/properties/a/items/type": )")));
  serve("hermes");
  wrong = with_schema(R"({"type": "array", "unevaluatedItems": false})");
  EXPECT_THAT(
      wrong["message"].get<std::string>(),
      HasSubstr(R"(schema at "/tools/0/function/parameters/properties/a/unevaluatedItems": this keyword)"));
  EXPECT_TRUE(becomes_true([&] { return all_blocks_free(); }));
}

}  // namespace
}  // namespace quire::server
