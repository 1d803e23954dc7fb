#include "protocol_fixtures.h"
#include "server/messages.h"

namespace quire::server {
namespace {

using test::error_of;
using test::json;
using ::testing::StartsWith;

constexpr const char* kHi = R"([{"role": "user", "content": "hi"}])";
constexpr const char* kTools =
    R"("tools": [{"name": "f", "description": "Does f.", "input_schema": {"z": 1, "a": {"b": 2}}},
                 {"type": "custom", "name": "g", "input_schema": {}, "strict": true,
                  "cache_control": {"type": "ephemeral"}, "input_examples": [{}]}])";

ChatRequest read(const std::string& messages, const std::string& fields = "",
                 ContentFormat format = ContentFormat::kText, bool reasons = true) {
  ServedModel model = test::served_model();
  model.content_format = format;
  model.reasons = reasons;
  return parse_messages_request(parse_body(R"({"max_tokens": 8, "messages": )" + messages +
                                           (fields.empty() ? "" : ", " + fields) + "}"),
                                model);
}
ChatRequest with_fields(const std::string& fields) { return read(kHi, fields); }
// Whether the error is a 400 that begins with the field's name.
void expect_refused(const std::string& fields, const std::string& place) {
  const ApiError error = error_of([&] { with_fields(fields); });
  EXPECT_EQ(error.status, 400) << fields;
  EXPECT_THAT(error.what(), StartsWith(place)) << fields;
}
void expect_refused_messages(const std::string& messages, const std::string& place) {
  const ApiError error = error_of([&] { read(messages); });
  EXPECT_EQ(error.status, 400) << messages;
  EXPECT_THAT(error.what(), StartsWith(place)) << messages;
}
// As the template gets them.
std::string chat(const std::string& messages, const std::string& fields = "",
                 ContentFormat format = ContentFormat::kText) {
  return read(messages, fields, format).context["messages"].dump();
}

TEST(MessagesConversationTest, ContentIsATextWhateverItCameAs) {
  EXPECT_EQ(chat(kHi), R"([{"role":"user","content":"hi"}])");
  const char* blocks = R"([{"role": "user", "content": [
      {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]}])";
  EXPECT_EQ(chat(blocks), R"([{"role":"user","content":"a\nb"}])");
  EXPECT_EQ(chat(blocks, "", ContentFormat::kParts),
            R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
}

TEST(MessagesConversationTest, TurnsOfOneRoleAreOne) {
  EXPECT_EQ(chat(R"([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text",
                     "text": "b"}]}, {"role": "assistant", "content": "c"},
                     {"role": "assistant", "content": "d"}, {"role": "user", "content": "e"}])"),
            R"([{"role":"user","content":"a\nb"},{"role":"assistant","content":"cd"},)"
            R"({"role":"user","content":"e"}])");
}

TEST(MessagesConversationTest, SystemIsTheFirstMessageWithoutWhatChangesEachTime) {
  const std::string expected =
      R"([{"role":"system","content":"Be brief.\nBe kind."},{"role":"user","content":"hi"}])";
  EXPECT_EQ(chat(kHi, R"("system": [{"type": "text", "text": "x-anthropic-billing-header: cch=0aaa9;"},
                          {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
                          {"type": "text", "text": "Be kind."}])"),
            expected);
  EXPECT_EQ(chat(R"([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}])",
                 R"("system": "Be brief.")"),
            expected);
  EXPECT_EQ(chat(kHi, R"("system": "")"), R"([{"role":"user","content":"hi"}])");
}

// Few templates take a system message there, and what stands before must stay as it is for the prefix cache.
TEST(MessagesConversationTest, ALaterSystemMessageIsTextOfTheTurnBeforeIt) {
  const std::string before = R"([{"role": "user", "content": "hi"}, )";
  const std::string note = R"({"role": "system", "content": [{"type": "text", "text": "note"}]})";
  EXPECT_EQ(chat(before + note + "]", R"("system": "s")"),
            R"([{"role":"system","content":"s"},{"role":"user","content":"hi\nnote"}])");
  const std::string call = R"({"role": "assistant", "content": [
      {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
      {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "4"}]}, )";
  const auto messages = read(before + call + note + "]").context["messages"];
  ASSERT_EQ(messages.size(), 3U) << "no turn of the user's behind the result";
  EXPECT_EQ(messages[2]["content"], "4\nnote");
  EXPECT_EQ(chat(before + R"({"role": "assistant", "content": "a"}, )" + note + "]"),
            R"([{"role":"user","content":"hi"},{"role":"assistant","content":"a"},)"
            R"({"role":"user","content":"note"}])");
}

TEST(MessagesConversationTest, CallsAndResultsAreThoseOfAChat) {
  EXPECT_EQ(
      chat(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [
              {"type": "thinking", "thinking": "Why", "signature": "s"},
              {"type": "redacted_thinking", "data": "xyz"}, {"type": "thinking", "thinking": "?"},
              {"type": "text", "text": "Let me see."},
              {"type": "tool_use", "id": "c1", "name": "f", "input": {"b": 1, "a": [2]}},
              {"type": "tool_use", "id": "c2", "name": "g", "input": {}}]},
             {"role": "user", "content": [
              {"type": "tool_result", "tool_use_id": "c2", "content": "gone", "is_error": true},
              {"type": "tool_result", "tool_use_id": "c1",
               "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
              {"type": "tool_result", "tool_use_id": "c3"}, {"type": "text", "text": "Go on."}]}])"),
      R"([{"role":"user","content":"hi"},)"
      R"({"role":"assistant","content":"Let me see.","reasoning":"Why?","reasoning_content":"Why?",)"
      R"("tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"b":1,"a":[2]}}},)"
      R"({"id":"c2","type":"function","function":{"name":"g","arguments":{}}}]},)"
      R"({"role":"tool","content":"Error:\ngone","name":"g","tool_call_id":"c2"},)"
      R"({"role":"tool","content":"x\ny","name":"f","tool_call_id":"c1"},)"
      R"({"role":"tool","content":"","tool_call_id":"c3"},{"role":"user","content":"Go on."}])");
}

TEST(MessagesConversationTest, ALastAssistantMessageIsContinued) {
  const auto request = read(R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": [
      {"type": "text", "text": "It is "}, {"type": "text", "text": "("}]}])");
  EXPECT_EQ(request.final_text, "It is (");
  EXPECT_EQ(request.context["add_generation_prompt"], false);
  EXPECT_EQ(with_fields("\"n\": null").final_text, std::nullopt);
}

TEST(MessagesConversationTest, WhatIsWrongIsNamed) {
  expect_refused_messages("[]", "messages is empty");
  expect_refused_messages("{}", "messages is an object");
  expect_refused_messages(R"([{"role": "tool", "content": "a"}])", "messages[0].role is \"tool\"");
  expect_refused_messages(R"([{"role": "user"}])", "messages[0].content is missing");
  expect_refused_messages(R"([{"role": "user", "content": 7}])", "messages[0].content is 7");
  const auto block = [](const std::string& role, const std::string& content) {
    return R"([{"role": ")" + role + R"(", "content": [)" + content + "]}]";
  };
  for (const char* type : {"image", "document", "search_result", "tool_use", "thinking"})
    expect_refused_messages(block("user", R"({"type": ")" + std::string(type) + "\"}"),
                            "messages[0].content[0].type is \"" + std::string(type) + "\"");
  expect_refused_messages(block("assistant", R"({"type": "tool_result", "tool_use_id": "c"})"),
                          "messages[0].content[0].type");
  expect_refused_messages(block("assistant", R"({"type": "server_tool_use"})"),
                          "messages[0].content[0].type");
  expect_refused_messages(block("system", R"({"type": "image"})"), "messages[0].content[0].type");
  expect_refused_messages(block("user", R"({"type": "text"})"), "messages[0].content[0].text is missing");
  expect_refused_messages(block("user", R"({"type": "tool_result"})"),
                          "messages[0].content[0].tool_use_id is missing");
  expect_refused_messages(
      block("user", R"({"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]})"),
      "messages[0].content[0].content[0].type is \"image\"");
  expect_refused_messages(block("assistant", R"({"type": "tool_use", "id": "c", "name": ""})"),
                          "messages[0].content[0].name is empty");
  expect_refused_messages(
      block("assistant", R"({"type": "tool_use", "id": "c", "name": "f", "input": "{}"})"),
      "messages[0].content[0].input is \"{}\"");
  expect_refused_messages(block("assistant", R"({"type": "tool_use", "id": "c", "name": "f", "input": {}})"),
                          "messages ends with a tool_use");
  expect_refused_messages(block("assistant", R"({"type": "thinking", "thinking": "a"})"),
                          "messages ends with an assistant's message");
}

TEST(MessagesToolsTest, AreThoseOfAChat) {
  const auto request = with_fields(kTools);
  EXPECT_EQ(
      request.context["tools"].dump(),
      R"([{"type":"function","function":{"name":"f","description":"Does f.","parameters":{"z":1,"a":{"b":2}}}},)"
      R"({"type":"function","function":{"name":"g","parameters":{},"strict":true}}])");
  EXPECT_TRUE(request.parse_tools && request.strict_tools);
  EXPECT_FALSE(request.require_call || request.one_tool_call);
}

// So that the prompt's head, which is cached, does not change when an agent loads a tool.
TEST(MessagesToolsTest, ADeferredToolIsDefinedWhereAResultRefersToIt) {
  const auto request = read(
      R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
             {"type": "tool_reference", "tool_name": "late"}, {"type": "tool_reference", "tool_name": "late"},
             {"type": "tool_reference", "tool_name": "f"}]}]}])",
      R"("tools": [{"name": "late", "input_schema": {"a": 1}, "defer_loading": true},
                   {"name": "f", "input_schema": {}, "defer_loading": false},
                   {"name": "later", "input_schema": {}, "defer_loading": true}])");
  EXPECT_EQ(request.context["tools"].dump(),
            R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
  EXPECT_EQ(request.late_tools.dump(),
            R"([{"type":"function","function":{"name":"late","parameters":{"a":1}}}])");
  EXPECT_EQ(request.context["messages"][1]["content"],
            "<function>{\"name\":\"late\",\"parameters\":{\"a\":1}}</function>\nlate\nf");
}

TEST(MessagesToolsTest, ADeferredToolThatWasLoadedIsChosenAndStrictAsTheOthers) {
  const std::string messages =
      R"([{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
             {"type": "tool_reference", "tool_name": "late"}]}]}])";
  const std::string tools =
      R"("tools": [{"name": "late", "input_schema": {}, "strict": true, "defer_loading": true},
                   {"name": "later", "input_schema": {}, "defer_loading": true}], "tool_choice": )";
  const auto request = read(messages, tools + R"({"type": "tool", "name": "late"})");
  EXPECT_EQ(request.only_tool, "late");
  EXPECT_TRUE(request.require_call && request.strict_tools && request.parse_tools);
  EXPECT_FALSE(request.context.contains("tools")) << "the prompt has its definition in a message";
  EXPECT_EQ(request.late_tools.dump(),
            R"([{"type":"function","function":{"name":"late","parameters":{},"strict":true}}])");
  EXPECT_TRUE(read(messages, tools + R"({"type": "any"})").require_call);
  EXPECT_THAT(error_of([&] { read(messages, tools + R"({"type": "tool", "name": "later"})"); }).what(),
              StartsWith("tool_choice names \"later\""));
}

TEST(MessagesToolsTest, ChoicesHaveTheirMeaning) {
  const auto chosen = [](const std::string& choice) {
    return with_fields(std::string(kTools) + ", \"tool_choice\": " + choice);
  };
  EXPECT_TRUE(chosen(R"({"type": "auto", "disable_parallel_tool_use": true})").one_tool_call);
  EXPECT_FALSE(chosen(R"({"type": "auto"})").require_call);
  EXPECT_TRUE(chosen(R"({"type": "any"})").require_call);
  EXPECT_EQ(chosen(R"({"type": "tool", "name": "g"})").only_tool, "g");
  const auto none = chosen(R"({"type": "none"})");
  EXPECT_FALSE(none.parse_tools);
  EXPECT_EQ(none.context["tools"].size(), 2U);
}

TEST(MessagesToolsTest, WhatIsWrongIsNamed) {
  expect_refused(R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])",
                 "tools[0].type is \"web_search_20250305\"");
  expect_refused(R"("tools": [{"input_schema": {}}])", "tools[0].name is missing");
  expect_refused(R"("tools": [{"name": "f"}])", "tools[0].input_schema is missing");
  expect_refused(R"("tools": [{"name": "f", "input_schema": []}])", "tools[0].input_schema is a list");
  expect_refused(R"("tools": [{"name": "f", "input_schema": {}, "description": 7}])",
                 "tools[0].description is 7");
  expect_refused(R"("tool_choice": {"type": "any"})", "tool_choice \"any\" needs tools");
  expect_refused(R"("tool_choice": "auto")", "tool_choice is \"auto\"");
  expect_refused(std::string(kTools) + R"(, "tool_choice": {"type": "tool"})", "tool_choice.name is missing");
  expect_refused(std::string(kTools) + R"(, "tool_choice": {"type": "tool", "name": "h"})",
                 "tool_choice names \"h\"");
}

TEST(MessagesFieldsTest, SamplingIsAsInChats) {
  const auto request = with_fields(
      R"("stop_sequences": ["a", "b"], "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 7,
         "stream": true, "metadata": {"user_id": "u"}, "service_tier": "auto", "model": "alias")");
  EXPECT_EQ(request.params.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_FLOAT_EQ(request.params.temperature, 0.5F);
  EXPECT_FLOAT_EQ(request.params.min_p, 0.1F);
  EXPECT_EQ(request.params.top_k, 3);
  EXPECT_EQ(request.params.seed, 7U);
  EXPECT_EQ(request.max_tokens, 8);
  EXPECT_TRUE(request.stream);
  EXPECT_EQ(request.model, "alias");
}

TEST(MessagesFieldsTest, ThinkingIsSaidToTheTemplateAndBounded) {
  const auto on = with_fields(R"("thinking": {"type": "enabled", "budget_tokens": 5})");
  EXPECT_EQ(on.context["enable_thinking"], true);
  EXPECT_EQ(on.context["thinking"], true);
  EXPECT_EQ(on.thinking_token_budget, 5);
  const auto off = with_fields(R"("thinking": {"type": "disabled"})");
  EXPECT_EQ(off.context["enable_thinking"], false);
  EXPECT_EQ(off.thinking_token_budget, std::nullopt);
  const auto adaptive = with_fields(
      R"("thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "high"})");
  EXPECT_EQ(adaptive.context["enable_thinking"], true);
  EXPECT_EQ(adaptive.context["reasoning_effort"], "high");
  EXPECT_FALSE(adaptive.include_reasoning);
  EXPECT_FALSE(with_fields("\"n\": null").context.contains("enable_thinking")) << "the template's choice";
  const auto own = with_fields(
      R"("thinking": {"type": "enabled", "budget_tokens": 5}, "chat_template_kwargs": {"thinking": false})");
  EXPECT_EQ(own.context["thinking"], false);
  const auto plain =
      read(kHi, R"("thinking": {"type": "enabled", "budget_tokens": 5})", ContentFormat::kText, false);
  EXPECT_EQ(plain.thinking_token_budget, std::nullopt) << "a model that does not reason needs no bound";
}

TEST(MessagesFieldsTest, AMalformedBudgetOfAChatIsRefusedBesideThinkingsOwn) {
  const char* thinking = R"("thinking": {"type": "enabled", "budget_tokens": 5}, "thinking_token_budget": )";
  EXPECT_EQ(with_fields(thinking + std::string("7")).thinking_token_budget, 5);
  for (const bool reasons : {true, false}) {
    for (const char* budget : {"\"many\"", "-1", "1.5", "[]"}) {
      for (const bool only_counts : {true, false}) {
        ServedModel model = test::served_model();
        model.reasons = reasons;
        const std::string body =
            format_text(R"({{"max_tokens": 8, "messages": {}, {}{}}})", kHi, thinking, budget);
        const ApiError error =
            error_of([&] { parse_messages_request(parse_body(body), model, only_counts); });
        EXPECT_EQ(error.status, 400) << body;
        EXPECT_THAT(error.what(), StartsWith("thinking_token_budget is ")) << body;
      }
    }
  }
}

TEST(MessagesFieldsTest, MalformedFieldsOfAChatAreRefusedBesideTheirOwn) {
  expect_refused(R"("thinking": {"type": "adaptive", "display": "omitted"}, "include_reasoning": "maybe")",
                 "include_reasoning is \"maybe\"");
  expect_refused(R"("output_config": {"effort": "low"}, "reasoning_effort": "huge")",
                 "reasoning_effort is \"huge\"");
}

TEST(MessagesFieldsTest, AFormatIsHeldToByBothOfItsNames) {
  const std::string format = R"({"type": "json_schema", "schema": {"type": "object"}})";
  const auto newer = with_fields("\"output_config\": {\"format\": " + format + "}").params.structured_outputs;
  const auto older = with_fields("\"output_format\": " + format).params.structured_outputs;
  EXPECT_EQ(newer->source, R"({"type":"object"})");
  EXPECT_EQ(newer->kind, StructuredOutputs::Kind::kJsonSchema);
  EXPECT_EQ(newer->name, "output_config.format.schema");
  EXPECT_EQ(older->name, "output_format.schema");
  expect_refused("\"output_format\": " + format + ", \"output_config\": {\"format\": " + format + "}",
                 "output_format and output_config.format");
  expect_refused("\"output_format\": " + format + R"(, "structured_outputs": {"regex": "a"})",
                 "output_format.schema and structured_outputs.regex");
}

TEST(MessagesFieldsTest, WhatCannotBeDoneIsRefusedByName) {
  for (const char* name : {"container", "mcp_servers", "compaction", "thread", "stop", "response_format", "n",
                           "best_of", "logprobs", "parallel_tool_calls", "continue_final_message"})
    expect_refused("\"" + std::string(name) + "\": [1]", name);
  expect_refused(R"("service_tier": "priority")", "service_tier is \"priority\"");
  expect_refused(R"("speed": "fast")", "speed is \"fast\"");
  expect_refused(R"("metadata": "u")", "metadata is \"u\"");
  expect_refused(R"("system": [{"type": "image"}])", "system[0].type is \"image\"");
  expect_refused(R"("stop_sequences": "a")", "stop_sequences is \"a\"");
  expect_refused(R"("thinking": {"type": "enabled"})", "thinking.budget_tokens is missing");
  expect_refused(R"("thinking": {"type": "between_tools"})", "thinking.type is");
  expect_refused(R"("thinking": {"type": "disabled"}, "chat_template_kwargs": 3)",
                 "chat_template_kwargs is 3");
  expect_refused(R"("output_config": {"effort": "none"})", "output_config.effort is \"none\"");
  expect_refused(R"("output_config": {"format": {"type": "text"}})", "output_config.format.type is");
  expect_refused(R"("output_config": {"format": {"type": "json_schema"}})",
                 "output_config.format.schema is missing");
}

TEST(MessagesFieldsTest, NoContextIsEditedAndAnEditOfNothingIsTaken) {
  const auto edits = [](const std::string& edit) {
    return R"("context_management": {"edits": [)" + edit + "]}";
  };
  with_fields(edits(R"({"type": "clear_thinking_20251015", "keep": "all"})"));
  expect_refused(edits(R"({"type": "clear_thinking_20251015"})"), "context_management.edits[0].type");
  expect_refused(edits(R"({"type": "clear_tool_uses_20250919"})"),
                 "context_management.edits[0].type is \"clear_tool_uses_20250919\"");
}

TEST(MessagesFieldsTest, OnlyACountNeedsNoMaxTokens) {
  const ServedModel model = test::served_model();
  const auto body = [] { return json(R"({"messages": [{"role": "user", "content": "hi"}]})"); };
  const ApiError error = error_of([&] { parse_messages_request(body(), model); });
  EXPECT_THAT(error.what(), StartsWith("max_tokens is missing"));
  EXPECT_EQ(parse_messages_request(body(), model, true).context["messages"].size(), 1U);
}

// What Claude Code sends, in its shape.
TEST(MessagesFieldsTest, AnAgentsRequestIsTaken) {
  ServedModel model = test::served_model();
  model.reasons = true;
  OrderedJson body = json(R"({"model": "toy", "max_tokens": 32000, "stream": true, "temperature": 1,
    "metadata": {"user_id": "{\"device_id\": \"d\", \"session_id\": \"s\"}"},
    "system": [{"type": "text", "text": "x-anthropic-billing-header: version=1; cch=1;"},
               {"type": "text", "text": "You write code.", "cache_control": {"type": "ephemeral"}}],
    "thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "diagnostics": {"previous_message_id": null},
    "messages": [{"role": "user", "content": [
        {"type": "text", "text": "<system-reminder>The time is now.</system-reminder>"},
        {"type": "text", "text": "Fix it.", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]},
      {"role": "system", "content": "There are two agents."}]})");
  for (int i = 0; i < 30; ++i)
    body["tools"].push_back({{"name", format_text("tool_{}", i)},
                             {"description", "One of many."},
                             {"input_schema", {{"type", "object"}, {"additionalProperties", false}}},
                             {"eager_input_streaming", true}});
  const auto request = parse_messages_request(body, model);
  EXPECT_EQ(request.context["tools"].size(), 30U);
  EXPECT_EQ(request.context["messages"].dump(),
            R"([{"role":"system","content":"You write code."},{"role":"user","content":)"
            R"("<system-reminder>The time is now.</system-reminder>\nFix it.\nThere are two agents."}])");
  EXPECT_EQ(request.max_tokens, 32000);
}

}  // namespace
}  // namespace quire::server
