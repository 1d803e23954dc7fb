#include <set>

#include "base/json.h"
#include "dialects/expect_parsed.h"
#include "dialects/output_format.h"
#include "expect_error.h"

namespace quire::dialects {
namespace {

using test::Call;
using test::Parsed;

test::MakeParser tool_parser(std::string_view dialect, bool parallel = true) {
  return [=, format = OutputFormat{.tool_calls = &tool_dialect(dialect)}] {
    return make_output_parser(format, "",
                              {.parallel_tool_calls = parallel, .new_id = test::counting_ids(), .tools = {}});
  };
}

const test::MakeParser kHermes = tool_parser("hermes");
const test::MakeParser kLlama = tool_parser("llama3_json");
const test::MakeParser kMistral = tool_parser("mistral");

void expect_calls(const test::MakeParser& make, std::string_view text, const std::vector<Call>& calls,
                  const std::string& content = "") {
  for (const Call& call : calls) EXPECT_TRUE(Json::accept(call.arguments)) << call.arguments;
  test::expect_parsed(make, text, {.content = content, .reasoning = {}, .calls = calls});
}

void expect_content(const test::MakeParser& make, std::string_view text) {
  test::expect_parsed(make, text, {.content = std::string(text)});
}

// Escapes, braces, quotes and tags in strings, other scripts, all kinds of values.
constexpr std::string_view kRichArguments =
    R"({"a": "}{][\"\\ </tool_call> ; [TOOL_CALLS]", "京都": "é\u00e9\ud83d\ude00\n", "n": [-1.5e+3, 0, [], {}],)"
    R"( "o": {"x": {"y": [true, false, null]}}})";

TEST(ToolParserTest, TextWithoutCallsIsContent) {
  for (const auto& make : {kHermes, kLlama, kMistral}) {
    expect_content(make, "");
    expect_content(make, "\n\n");
    expect_content(make, "Plain text, 3 < 4 and <b>bold</b> [1] {x} ünï\n");
    expect_content(make, " <tool_cal [TOOL_CALL <|python_tag <<[[<|<|");
  }
}

TEST(ToolParserTest, Hermes) {
  expect_calls(kHermes,
               "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
               {{"get_weather", R"({"city": "Paris"})"}});
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>", {{"f", "{}"}});
  expect_calls(kHermes, "<tool_call>{\"arguments\":{\"a\":1},\"name\":\"f\"}</tool_call>",
               {{"f", "{\"a\":1}"}});
  expect_calls(kHermes,
               "<tool_call>{\"id\":7,\"x\":[{}],\"name\":\"f\",\"arguments\":{},\"y\":-1e2}</tool_call>",
               {{"f", "{}"}});
  expect_calls(
      kHermes,
      "<tool_call>{\"name\":\"f\\u00e9\\\"\",\"arguments\":" + std::string(kRichArguments) + "}</tool_call>",
      {{"fé\"", std::string(kRichArguments)}});
}

TEST(ToolParserTest, HermesCallsInParallel) {
  expect_calls(kHermes,
               "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>\n"
               "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": 2}}\n</tool_call>\n",
               {{"f", "{\"a\": 1}"}, {"g", "{\"b\": 2}"}});
}

// White space that stands alone beside calls is not content; beside text it is.
TEST(ToolParserTest, TextAroundHermesCalls) {
  expect_calls(kHermes,
               "\n\nLet me see.\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n"
               " and <tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call> done\n",
               {{"f", "{}"}, {"g", "{}"}}, "\n\nLet me see.\n\n and  done\n");
  expect_calls(kHermes, "\n\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n", {{"f", "{}"}});
}

// Left out by models: the closing tag, the last brace, arguments that would be empty.
TEST(ToolParserTest, HermesCallsThatLackSomething) {
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}", {{"f", "{\"a\":1}"}});
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}", {{"f", "{\"a\":1}"}});
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}</tool_call>",
               {{"f", "{\"a\":1}"}});
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\"}</tool_call>", {{"f", "{}"}});
  expect_calls(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":null}</tool_call>", {{"f", "{}"}});
  expect_calls(kHermes,
               "<tool_call>{\"name\":\"f\",\"arguments\":{}}<tool_call>{\"name\":\"g\",\"arguments\":{}}",
               {{"f", "{}"}, {"g", "{}"}});
}

TEST(ToolParserTest, ArgumentsInAString) {
  expect_calls(kHermes,
               R"(<tool_call>{"name":"f","arguments":" {\"a\": \"x\\n\\u00e9\u00e9\"} "}</tool_call>)",
               {{"f", R"({"a": "x\n\u00e9é"})"}});
  expect_calls(kHermes, R"(<tool_call>{"arguments":"{\"a\":{}}","name":"f"}</tool_call>)",
               {{"f", R"({"a":{}})"}});
  expect_calls(kHermes, R"(<tool_call>{"name":"f","arguments":""}</tool_call>)", {{"f", "{}"}});
  expect_content(kHermes, R"(<tool_call>{"name":"f","arguments":"Paris"}</tool_call>)");
}

TEST(ToolParserTest, WhatOnlyLooksLikeAHermesCallIsContent) {
  for (const std::string_view text : {
           "<tool_call>",
           "<tool_call>{",
           "<tool_call></tool_call>",
           "<tool_call>{}</tool_call>",
           "<tool_call>\n{\"name\": \"f\"",
           "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
           "<tool_call>{\"name\":3,\"arguments\":{}}</tool_call>",
           "<tool_call>{\"arguments\":{\"a\":1}}</tool_call>",
           "<tool_call>{\"name\":\"f\",\"arguments\":[1]}</tool_call>",
           "<tool_call>{\"name\":\"f\",\"arguments\":nil}</tool_call>",
           "<tool_call>{\"name\":\"f\",}</tool_call>",
           "<tool_call>{'name':'f','arguments':{}}</tool_call>",
           "<tool_call>{\"name\":\"f\",\"x\":01,\"arguments\":{}}</tool_call>",
           "<tool_call>{\"name\":\"\\ud800x\",\"arguments\":{}}</tool_call>",
           "<tool_call>f(1)</tool_call> text",
           "</tool_call>",
           "<tool_call>{\"name\":\"a\nb\",\"arguments\":{}}</tool_call>",
       }) {
    expect_content(kHermes, text);
  }
  // A call behind one that failed is still found.
  expect_calls(kHermes,
               "<tool_call><tool_call>{\"x\" <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
               {{"f", "{}"}}, "<tool_call><tool_call>{\"x\" ");
}

// Too late to take the call back: it keeps what it has, and nothing of the text is lost.
TEST(ToolParserTest, ArgumentsThatBreakOff) {
  test::expect_parsed(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1,}}</tool_call>",
                      {.content = "}}</tool_call>", .calls = {{"f", "{\"a\":1,"}}});
  test::expect_parsed(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"Par",
                      {.calls = {{"f", "{\"a\":\"Par"}}});
  test::expect_parsed(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":\"{\\\"a\\\"\"}",
                      {.content = "\"}", .calls = {{"f", "{\"a\""}}});
  test::expect_parsed(kMistral, "[TOOL_CALLS]f[ARGS]{\"a\" 1}[TOOL_CALLS]g[ARGS]{}",
                      {.content = "1}", .calls = {{"f", "{\"a\" "}, {"g", "{}"}}});
  test::expect_parsed(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}}</tool_call>",
                      {.content = "}</tool_call>", .calls = {{"f", "{\"a\":1}"}}});
}

TEST(ToolParserTest, TagsThatAnOutputsEndCutsAreNoContent) {
  const auto expect_no_content = [](std::string_view dialect, std::string text, std::string_view last) {
    for (const std::size_t end = text.find(last) + last.size(); text.size() >= end; text.pop_back()) {
      const Parsed parsed = test::parse_pieces(*tool_parser(dialect)(), {text});
      EXPECT_EQ(parsed.content, "") << text;
      EXPECT_EQ(parsed.calls.size(), 1U) << text;
    }
  };
  expect_no_content("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>", "}}");
  expect_no_content("qwen3_coder",
                    "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n"
                    "</parameter>\n</function>\n</tool_call>",
                    "<parameter=a>\n1");
  expect_no_content("qwen3_coder",
                    "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>\n</"
                    "function>\n</tool_call>",
                    "<parameter=a>\n1");
  expect_no_content("minimax_m2",
                    "<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">1</parameter>\n"
                    "</invoke>\n</minimax:tool_call>",
                    "\"a\">1");
  test::expect_parsed(kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\nso </tool_",
                      {.content = "\nso </tool_", .calls = {{"f", "{}"}}});
}

TEST(ToolParserTest, QwenCallsWithoutTheirOuterTags) {
  const test::MakeParser qwen = tool_parser("qwen3_coder");
  const std::string f = "<function=f>\n<parameter=a>\n1\n</parameter>\n</function>";
  const std::string g = "<function=g>\n</function>";
  const std::vector<Call> both = {{"f", "{\"a\": 1}"}, {"g", "{}"}};
  expect_calls(qwen, "So.\n" + f + "\n" + g + " done", both, "So.\n done");
  expect_calls(qwen, f + "\n</tool_call>\n" + g + "</tool_call>", both);
  expect_calls(qwen, f + "\n<tool_call>\n" + g + "\n</tool_call>", both);
  expect_calls(qwen, "<tool_call>\n" + f + "\n</tool_call>\n" + g, both);
  for (const std::string_view text : {"<function=", "<function=f", "`<function=f>` is one", "</tool_call>",
                                      "<function=f>\nx</function>", "<function=f>\n<parameter=a>"})
    expect_content(qwen, text);
}

TEST(ToolParserTest, Llama) {
  expect_calls(kLlama, R"({"name": "get_weather", "parameters": {"city": "Paris"}})",
               {{"get_weather", R"({"city": "Paris"})"}});
  expect_calls(kLlama, R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}})", {{"f", "{}"}});
  expect_calls(kLlama, "\n {\"type\":\"function\",\"name\":\"f\",\"arguments\":{\"a\":[1]},\"z\":2}\n",
               {{"f", "{\"a\":[1]}"}});
  expect_calls(kLlama, "Let me look.<|python_tag|> {\"name\": \"f\"}", {{"f", "{}"}}, "Let me look.");
  expect_calls(kLlama, "{\"name\":\"f\",\"parameters\":" + std::string(kRichArguments) + "}",
               {{"f", std::string(kRichArguments)}});
}

TEST(ToolParserTest, LlamaCallsInParallel) {
  for (const std::string_view separator : {"; ", ";", " ;\n", "\n", "<|python_tag|>"}) {
    expect_calls(
        kLlama,
        format_text(R"({{"name":"f","parameters":{{"a":1}}}}{}{{"name":"g","parameters":{{}}}};)", separator),
        {{"f", "{\"a\":1}"}, {"g", "{}"}});
  }
  expect_calls(kLlama, R"({"name":"f","parameters":{}}; {"name":"g"}; and {"name":"h","parameters":{}})",
               {{"f", "{}"}}, R"( {"name":"g"}; and {"name":"h","parameters":{}})");
}

TEST(ToolParserTest, WhatOnlyLooksLikeALlamaCallIsContent) {
  for (const std::string_view text : {
           R"({"answer": {"name": "f", "parameters": {}}})",
           R"({"name": "Ann", "age": 7, "parameters": {}})",
           R"({"name": "Ann"})",
           R"(The call is {"name": "f", "parameters": {}})",
           "{}",
           "{",
           "; {",
           "<|python_tag|>print(1)",
           "<|python_tag|>",
           R"(<|python_tag|>{"parameters": {}})",
           "{\"name\": \"f\", \"pa",
           R"([{"name": "f", "parameters": {}}])",
       }) {
    expect_content(kLlama, text);
  }
}

TEST(ToolParserTest, MistralList) {
  expect_calls(kMistral, R"([TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}])", {{"f", "{\"a\": 1}"}});
  expect_calls(
      kMistral,
      R"(Hm.[TOOL_CALLS][{"name":"f","arguments":{}} , {"arguments":{"b":2},"name":"g","id":"x"}] ok)",
      {{"f", "{}"}, {"g", "{\"b\":2}"}}, "Hm. ok");
  expect_calls(kMistral, "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":" + std::string(kRichArguments) + "}]",
               {{"f", std::string(kRichArguments)}});
  // The closing bracket left out.
  expect_calls(kMistral,
               R"([TOOL_CALLS] [{"name":"f","arguments":{}} [TOOL_CALLS] [{"name":"g","arguments":{}}])",
               {{"f", "{}"}, {"g", "{}"}});
  // Cut off within the list.
  expect_calls(kMistral, R"([TOOL_CALLS] [{"name":"f","arguments":{}}, )", {{"f", "{}"}});
  expect_calls(kMistral, R"([TOOL_CALLS] [{"name":"f","arguments":{}}, {"na)", {{"f", "{}"}}, " {\"na");
}

TEST(ToolParserTest, MistralNames) {
  expect_calls(kMistral, R"([TOOL_CALLS]get_weather[ARGS]{"city": "Paris"})",
               {{"get_weather", R"({"city": "Paris"})"}});
  expect_calls(kMistral, R"(Hm. [TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g-2[CALL_ID]a1B2c3D4e[ARGS]{} )",
               {{"f", "{\"a\":1}"}, {"g-2", "{}"}}, "Hm. ");
  expect_calls(kMistral, R"([TOOL_CALLS] f [ARGS] {"a":1} [TOOL_CALLS]g{"b":{}})",
               {{"f", "{\"a\":1}"}, {"g", "{\"b\":{}}"}});
  expect_calls(kMistral, "[TOOL_CALLS]f[ARGS]" + std::string(kRichArguments),
               {{"f", std::string(kRichArguments)}});
}

TEST(ToolParserTest, WhatOnlyLooksLikeAMistralCallIsContent) {
  for (const std::string_view text : {
           "[TOOL_CALLS]",
           "[TOOL_CALLS] []",
           "[TOOL_CALLS] [1]",
           R"([TOOL_CALLS] {"name":"f","arguments":{}})",
           R"([TOOL_CALLS] [{"arguments":{}}, {"name":"f","arguments":{}}])",
           "[TOOL_CALLS]f",
           "[TOOL_CALLS]f[ARGS]",
           "[TOOL_CALLS]f[ARGS]12",
           "[TOOL_CALLS]f g[ARGS]{}",
           "[TOOL_CALLS]f[ARG]{}",
           "[TOOL_CALLS]f[CALL_ID]x,{}",
           "[TOOL_CALLS]f[A[A",
           R"([{"name":"f","arguments":{}}])",
           "[TOOL_CALLS]é[ARGS]{}",
       }) {
    expect_content(kMistral, text);
  }
  expect_calls(kMistral, "[TOOL_CALLS]f[[TOOL_CALLS]g[TOOL_CALLS]h[ARGS]{}", {{"h", "{}"}},
               "[TOOL_CALLS]f[[TOOL_CALLS]g");
}

TEST(ToolParserTest, OnlyTheFirstCallIfNotInParallel) {
  expect_calls(tool_parser("hermes", false),
               "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>\n"
               "<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call> end",
               {{"f", "{\"a\":1}"}}, " end");
  expect_calls(tool_parser("llama3_json", false),
               R"({"name":"f","parameters":{}}; {"name":"g","parameters":{"b":2}})", {{"f", "{}"}});
  expect_calls(tool_parser("mistral", false),
               R"([TOOL_CALLS] [{"name":"f","arguments":{}}, {"name":"g","arguments":{"b":2}}])",
               {{"f", "{}"}});
}

// What a client sees of `text` before the output goes on.
Parsed seen_so_far(const test::MakeParser& make, std::string_view text) {
  Parsed parsed;
  test::join(make()->parse(text), parsed);
  return parsed;
}

TEST(ToolParserTest, GivesOutAllThatIsCertain) {
  EXPECT_EQ(seen_so_far(kHermes, "Hello, 1 <").content, "Hello, 1 ");
  EXPECT_EQ(seen_so_far(kHermes, "Hello \n<tool_cal").content, "Hello \n");
  EXPECT_EQ(seen_so_far(kHermes, "a<tool_x").content, "a<tool_x");
  EXPECT_EQ(seen_so_far(kHermes, "a<tool_<").content, "a<tool_");
  EXPECT_EQ(seen_so_far(kHermes, "\n\n").content, "");
  EXPECT_EQ(seen_so_far(kLlama, "{\"answer\"").content, "");
  EXPECT_EQ(seen_so_far(kLlama, "{\"answer\": 1").content, "{\"answer\": 1");
  EXPECT_EQ(seen_so_far(kMistral, "[TOOL_CALLS]f[ARGS] none").content, "[TOOL_CALLS]f[ARGS] none");
}

TEST(ToolParserTest, ArgumentsComeAsTheyAreWritten) {
  const std::string_view arguments = R"({"a":"xyz","b":[1,2]})";
  for (const auto& [make, before] : std::vector<std::pair<test::MakeParser, std::string>>{
           {kHermes, "<tool_call>{\"name\":\"f\",\"arguments\":"},
           {kLlama, "{\"name\":\"f\",\"parameters\":"},
           {kMistral, "[TOOL_CALLS] [{\"name\":\"f\",\"arguments\":"},
           {kMistral, "[TOOL_CALLS]f[ARGS]"}}) {
    const auto parser = make();
    EXPECT_TRUE(parser->parse(before).empty());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const OutputDelta delta = parser->parse(arguments.substr(i, 1));
      ASSERT_EQ(delta.tool_calls.size(), 1U);
      EXPECT_EQ(delta.tool_calls[0].arguments, arguments.substr(i, 1));
      EXPECT_EQ(delta.tool_calls[0].name, i == 0 ? "f" : "");
    }
  }
}

// A deep nest is refused where parse_json would refuse it, and not before.
TEST(ToolParserTest, ArgumentsNestNoDeeperThanRequestsMay) {
  const auto nested = [](int depth) {
    std::string text = "{\"a\":";
    for (int i = 1; i < depth; ++i) text += '[';
    text.append(static_cast<std::size_t>(depth - 1), ']');
    return text + "}";
  };
  const auto call = [](const std::string& arguments) { return "[TOOL_CALLS]f[ARGS]" + arguments; };
  expect_calls(kMistral, call(nested(64)), {{"f", nested(64)}});
  EXPECT_NO_THROW(parse_json(nested(64), "arguments"));
  EXPECT_NE(test::parse_pieces(*kMistral(), {call(nested(65))}).content, "");
  expect_error([&] { parse_json(nested(65), "arguments"); }, {"nested deeper"});
}

// Quadratic time would make this take minutes.
TEST(ToolParserTest, LongTextsTakeLinearTime) {
  const auto repeat = [](std::string_view text) {
    std::string all;
    while (all.size() < 1'000'000) all += text;
    return all;
  };
  for (const std::string_view unit :
       {"<", " ", "<tool_call>", "<tool_call>{\"name\"", "[TOOL_CALLS]f", "[TOOL_CALLS]f[", "[TOOL_CALLS][{",
        "{", "; ", "<tool_call>{\"name\":\"f\",\"arguments\":{", "[TOOL_CALLS] f ",
        "<|python_tag|>{\"x\":"}) {
    for (const auto& make : {kHermes, kLlama, kMistral}) {
      const std::string text = repeat(unit);
      const Parsed parsed = test::parse_pieces(*make(), {text});
      EXPECT_TRUE(!parsed.calls.empty() || parsed.content == text) << unit;
    }
  }
  const std::string call =
      "<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"" + repeat("x\\n") + "\"}}</tool_call>";
  EXPECT_EQ(test::parse_pieces(*kHermes(), {call}).calls.size(), 1U);
  const std::string late =
      "<tool_call>{\"arguments\":{\"a\":[" + repeat("1,") + "1]},\"name\":\"f\"}</tool_call>";
  EXPECT_EQ(test::parse_pieces(*kHermes(), {late}).calls.size(), 1U);
  EXPECT_EQ(test::parse_pieces(*kMistral(), {"[TOOL_CALLS]" + repeat("f")}).calls.size(), 0U);
}

TEST(ToolParserTest, Names) {
  for (const ToolDialect& dialect : tool_dialects())
    EXPECT_EQ(&tool_dialect(dialect.names.front()), &dialect);
  EXPECT_EQ(&tool_dialect("qwen3_xml"), &tool_dialect("qwen3_coder"));
  expect_error([] { tool_dialect("xml"); }, {"xml", "hermes, llama3_json, llama4_pythonic, mistral"});
  expect_error([] { tool_dialect(""); }, {"tool-call parser"});
}

TEST(ToolParserTest, RandomIds) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) {
    ids.insert(random_call_id(CallIds::kPrefixed));
    const std::string short_id = random_call_id(CallIds::kNine);
    EXPECT_EQ(short_id.size(), 9U);
    EXPECT_EQ(short_id.find('_'), std::string::npos);
    ids.insert(short_id);
  }
  EXPECT_EQ(ids.size(), 2000U);
  const auto parser = make_output_parser({.tool_calls = &tool_dialect("mistral")}, "");
  EXPECT_EQ(test::parse_pieces(*parser, {"[TOOL_CALLS]f[ARGS]{}"}).calls.at(0).id.size(), 9U);
}

}  // namespace
}  // namespace quire::dialects
