#include <filesystem>
#include <map>

#include "base/json.h"
#include "dialects/argument_types.h"
#include "dialects/expect_parsed.h"
#include "dialects/output_format.h"

namespace quire::dialects {
namespace {

using test::Call;
using test::Parsed;

std::shared_ptr<const OrderedJson> weather_tools() {
  return std::make_shared<OrderedJson>(OrderedJson::parse(R"([{"type": "function", "function": {
      "name": "weather", "parameters": {"type": "object", "$defs": {"Unit": {"enum": ["C", "F"]}}, "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "hot": {"type": "boolean"},
        "unit": {"$ref": "#/$defs/Unit"}, "near": {"type": "array", "items": {"type": "string"}},
        "at": {"type": "object"}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "scale": {"allOf": [{"$ref": "#/$defs/Unit"}], "default": "C"}}}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}])"));
}

test::MakeParser parser_of(std::string_view tools, std::string_view reasoning = "", std::string prompt = "") {
  OutputFormat format{.tool_calls = &tool_dialect(tools)};
  if (!reasoning.empty()) format.reasoning = &reasoning_dialect(reasoning);
  return [=, known = weather_tools()] {
    return make_output_parser(format, prompt, {.new_id = test::counting_ids(), .tools = known});
  };
}

struct Example {
  std::string_view dialect, text;
  Parsed expected;
};

const std::string kWeather = R"({"city": "Łódź", "days": 3})";

// Each as the model's chat template writes calls, two in parallel where it allows them.
const std::vector<Example> kExamples = {
    {"llama4_pythonic",
     R"([weather(city="Łódź", days=3), now()])",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"pythonic",
     R"(<|python_start|>[weather(city='Łódź', days=3)]<|python_end|>)",
     {.calls = {{"weather", kWeather}}}},
    {"mistral_args",
     "Hm.[TOOL_CALLS]weather[ARGS]{\"city\": \"Łódź\", \"days\": 3}[TOOL_CALLS]now[CALL_ID]abcdefghi[ARGS]{}",
     {.content = "Hm.", .calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"qwen3_coder",
     "Let me "
     "see.\n<tool_call>\n<function=weather>\n<parameter=city>\nŁódź\n</parameter>\n<parameter=days>\n3\n"
     "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
     {.content = "Let me see.\n", .calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"seed_oss",
     "<seed:tool_call>\n<function=weather>\n<parameter=city>Łódź</parameter>\n<parameter=days>3</parameter>\n"
     "</function>\n</seed:tool_call>",
     {.calls = {{"weather", kWeather}}}},
    {"glm45",
     "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Łódź</arg_value>\n<arg_key>days</arg_key>\n"
     "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"glm47",
     "<tool_call>weather<arg_key>city</arg_key><arg_value>Łódź</arg_value><arg_key>days</arg_key><arg_value>3"
     "</arg_value></tool_call><tool_call>now</tool_call>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"minimax_m2",
     "<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Łódź</parameter>\n"
     "<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke "
     "name=\"now\">\n</invoke>\n</minimax:tool_call>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"deepseek_v3",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": "
     "\"Łódź\", "
     "\"days\": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
     "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"deepseek_v31",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Łódź\", \"days\": 3}"
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"deepseek_v32",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
     "string=\"true\">"
     "Łódź</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     {.calls = {{"weather", kWeather}}}},
    {"kimi_k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
     "{\"city\": \"Łódź\", \"days\": 3}<|tool_call_end|><|tool_call_begin|>functions.now:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     {.calls = {{"weather", kWeather, "functions.weather:0"}, {"now", "{}", "functions.now:1"}}}},
    {"openai",
     "<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Łódź\", \"days\": "
     "3}"
     "<|call|>",
     {.calls = {{"weather", kWeather}}}},
    {"openai",
     " to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Łódź\", \"days\": 3}",
     {.calls = {{"weather", kWeather}}}},
    {"granite",
     "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź\", \"days\": 3}}, "
     "{\"name\": \"now\", \"arguments\": {}}]",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"granite-20b-fc",
     "<function_call> {\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź\", \"days\": 3}}\n"
     "<function_call> {\"name\": \"now\", \"arguments\": {}}",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"phi4_mini_json",
     "functools[{\"name\": \"weather\", \"arguments\": {\"city\": \"Łódź\", \"days\": 3}}]",
     {.calls = {{"weather", kWeather}}}},
    {"phi4_mini",
     "<|tool_call|>[{\"name\": \"now\", \"parameters\": {}}]<|/tool_call|>",
     {.calls = {{"now", "{}"}}}},
    {"gemma4",
     "<|tool_call>call:weather{city:<|\"|>Łódź<|\"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"functiongemma",
     "<start_function_call>call:weather{city:<escape>Łódź<escape>,days:3}<end_function_call>",
     {.calls = {{"weather", kWeather}}}},
    {"cohere_command3",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": "
     "{\"city\": \"Łódź\", \"days\": 3}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", "
     "\"parameters\": {}}\n"
     "]<|END_ACTION|>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"olmo3",
     "<function_calls>weather(city=\"Łódź\", days=3)\nnow()</function_calls>",
     {.calls = {{"weather", kWeather}, {"now", "{}"}}}},
    {"lfm2",
     "<|tool_call_start|>[weather(city=\"Łódź\", days=3)]<|tool_call_end|>It",
     {.content = "It", .calls = {{"weather", kWeather}}}},
    {"hunyuan_a13b",
     "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
     {.calls = {{"now", "{}"}}}},
    {"internlm",
     "<|action_start|><|plugin|>\n{\"name\": \"now\", \"parameters\": {}}<|action_end|>",
     {.calls = {{"now", "{}"}}}},
    {"longcat",
     "<longcat_tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</longcat_tool_call>",
     {.calls = {{"now", "{}"}}}},
};

TEST(DialectsTest, CallsAsTemplatesWriteThem) {
  for (const Example& example : kExamples) {
    SCOPED_TRACE(example.dialect);
    test::expect_parsed(parser_of(example.dialect), example.text, example.expected);
  }
}

// Every dialect has an example, and every example's calls are found behind a text, too.
TEST(DialectsTest, EveryDialectHasAnExample) {
  for (const ToolDialect& dialect : tool_dialects()) {
    const bool has_tests = dialect.names.front() == "hermes" || dialect.names.front() == "llama3_json" ||
                           dialect.names.front() == "mistral";
    EXPECT_TRUE(has_tests || std::any_of(kExamples.begin(), kExamples.end(),
                                         [&](const Example& example) {
                                           return &tool_dialect(example.dialect) == &dialect;
                                         }))
        << dialect.names.front();
  }
}

TEST(DialectsTest, ACallThatIsCutAnywhereLosesNothingBeforeItBegan) {
  for (const Example& example : kExamples) {
    for (std::size_t i = 0; i <= example.text.size(); ++i) {
      const Parsed cut = test::parse_pieces(*parser_of(example.dialect)(), {example.text.substr(0, i)});
      ASSERT_LE(cut.calls.size(), example.expected.calls.size());
      for (std::size_t call = 0; call < cut.calls.size(); ++call) {
        const Call& whole = example.expected.calls[call];
        EXPECT_EQ(cut.calls[call].name, whole.name);
        EXPECT_TRUE(whole.arguments.starts_with(cut.calls[call].arguments)) << cut.calls[call].arguments;
      }
      if (!cut.calls.empty()) continue;
      ASSERT_EQ(cut.content, example.text.substr(0, i)) << example.dialect;
    }
  }
}

// Text in which each tag of a dialect stands alone, twice, and in the wrong order is content.
TEST(DialectsTest, TagsThatBeginNoCallAreContent) {
  for (const ToolDialect& dialect : tool_dialects()) {
    std::string text = "x";
    for (const std::string& tag : tags_of({.tool_calls = &dialect}))
      if (tag != dialect.lead) text += " " + tag + " " + tag + "é";
    const Parsed parsed = test::parse_pieces(*parser_of(dialect.names.front())(), {text});
    EXPECT_EQ(parsed.content, text) << dialect.names.front();
    EXPECT_TRUE(parsed.calls.empty());
  }
}

std::string qwen_argument(std::string_view name, std::string_view value) {
  return format_text(
      "<tool_call>\n<function=weather>\n<parameter={}>\n{}\n</parameter>\n</function>\n</tool_call>", name,
      value);
}

// Between tags, the tool's schema says what is text.
TEST(DialectsTest, SchemasTypeArguments) {
  const auto expect = [](std::string_view name, std::string_view value, const std::string& json) {
    test::expect_parsed(parser_of("qwen3_coder"), qwen_argument(name, value),
                        {.calls = {{"weather", format_text("{{\"{}\": {}}}", name, json)}}});
  };
  expect("city", "3", R"("3")");
  expect("city", "null", R"("null")");
  expect("city", "", R"("")");
  expect("city", " a \"b\"\\\n\n<i>\t</param", R"(" a \"b\"\\\n\n<i>\t</param")");
  expect("city", "</parameter", R"("</parameter")");
  expect("days", " 3 ", "3");
  expect("days", "-1.5e3", "-1.5e3");
  expect("days", "three", R"("three")");
  expect("hot", "True", "true");
  expect("hot", "false", "false");
  expect("hot", "None", "null");
  expect("unit", "1", R"("1")");
  expect("scale", "1", R"("1")");
  expect("near", "[\"a\", 'b',\n {\"c\": None}]", R"(["a", "b", {"c": null}])");
  expect("at", " {} ", "{}");
  expect("note", "null", "null");
  expect("note", "[x", R"("[x")");
  expect("note", "\"x\"", R"("\"x\"")");
  expect("other", "[1]", "[1]");
  expect("other", "one", R"("one")");
}

TEST(DialectsTest, PythonBecomesJson) {
  const auto expect = [](std::string_view python, const std::string& json) {
    const Parsed expected{.calls = {{"f", json}}};
    EXPECT_TRUE(Json::accept(json)) << json;
    test::expect_parsed(parser_of("olmo3"), format_text("<function_calls>f({})</function_calls>", python),
                        expected);
  };
  expect(" a = 1 , b = -2.5e3,\nc=None, d=True ,", R"({"a": 1, "b": -2.5e3, "c": null, "d": true})");
  expect(R"(a='it\'s "so"\n\x41\u00e9\U0001F600\ud83d\ude00\q\/')",
         R"({"a": "it's \"so\"\n\u0041\u00e9\ud83d\ude00\ud83d\ude00\\q/"})");
  expect(R"(a='\0\012\18\101\7777\3')", R"({"a": "\u0000\u000a\u00018\u0041\u01ff7\u0003"})");
  expect("a=[1, [], (), ('x',), {}], b={'k': {\"l\": null}, }",
         R"({"a": [1, [], [], ["x"], {}], "b": {"k": {"l": null}}})");
  expect("a=\"\t)]}\"", R"({"a": "\t)]}"})");
}

TEST(DialectsTest, WhatIsNoPythonIsContent) {
  for (const std::string_view text :
       {"[1, 2]", "[a](b)", "[x] (y)", "[f(1)]", "[f(a)]", "[f(a b=1)]", "[f(,)]", "f(a=1)", "[f"})
    test::expect_parsed(parser_of("pythonic"), text, {.content = std::string(text)});
  // Broken off behind what has been given out.
  test::expect_parsed(parser_of("pythonic"), "[f(a=1, b=x)] no",
                      {.content = ")] no", .calls = {{"f", "{\"a\": 1, \"b\": "}}});
  test::expect_parsed(parser_of("olmo3"), R"(<function_calls>f(a="\ud83dx"))",
                      {.content = "x\")", .calls = {{"f", "{\"a\": \"\\ud83d"}}});
}

TEST(DialectsTest, GemmaBecomesJson) {
  const auto expect = [](std::string_view gemma, const std::string& json) {
    EXPECT_TRUE(Json::accept(json)) << json;
    test::expect_parsed(parser_of("gemma4"), format_text("<|tool_call>call:f{{{}}}<tool_call|>", gemma),
                        {.calls = {{"f", json}}});
  };
  expect(R"(a:{b:<|"|>}],<|"x"\<|"|>,c:[1,true,<|"|><|"|>]})",
         R"({"a": {"b": "}],<|\"x\"\\", "c": [1, true, ""]}})");
  expect("a: San José , b:null,<|\"|>c d<|\"|>:2", R"({"a": "San José", "b": null, "c d": 2})");
}

TEST(DialectsTest, StringsBetweenTagsComeAsTheyAreWritten) {
  const auto parser = parser_of("qwen3_coder")();
  EXPECT_TRUE(parser->parse("<tool_call>\n<function=weather>\n<parameter=city").empty());
  EXPECT_EQ(parser->parse(">\nPa").tool_calls.at(0).arguments, R"({"city": "Pa)");
  EXPECT_EQ(parser->parse("ris</").tool_calls.at(0).arguments, "ris");
  EXPECT_EQ(parser->parse("b>\n").tool_calls.at(0).arguments, "</b>");
  EXPECT_EQ(parser->parse("\n</parameter>").tool_calls.at(0).arguments, "\\n\"");
  EXPECT_EQ(parser->parse("</function>").tool_calls.at(0).arguments, "}");
}

const std::string kHermesCall = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

// A model that forgets to end its reasoning still calls; one that goes on has only mentioned it.
TEST(DialectsTest, CallsWithWhichReasoningEndsAreCalls) {
  const auto make = parser_of("hermes", "qwen3", "<think>\n");
  test::expect_parsed(make, "So I call\n" + kHermesCall + "\n" + kHermesCall + "\n",
                      {.reasoning = "So I call\n", .calls = {{"now", "{}"}, {"now", "{}"}}});
  const std::string mentioned = "I could " + kHermesCall + " or not ";
  test::expect_parsed(make, mentioned + kHermesCall, {.reasoning = mentioned, .calls = {{"now", "{}"}}});
  test::expect_parsed(make, mentioned, {.reasoning = mentioned});
  test::expect_parsed(make, mentioned + "</think>" + kHermesCall,
                      {.reasoning = mentioned, .calls = {{"now", "{}"}}});
  test::expect_parsed(make, kHermesCall + "</think>x", {.content = "x", .reasoning = kHermesCall});
  test::expect_parsed(make, "<tool_call>{\"name</think>x",
                      {.content = "x", .reasoning = "<tool_call>{\"name"});
  test::expect_parsed(make, "<tool_call>{\"name", {.reasoning = "<tool_call>{\"name"});
  test::expect_parsed(make, "a <tool_call><tool_call> b", {.reasoning = "a <tool_call><tool_call> b"});
}

// Tags that are special tokens are never only mentioned.
TEST(DialectsTest, SpecialTagsEndReasoning) {
  test::expect_parsed(
      parser_of("kimi_k2", "kimi_k2"),
      "I ask.<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>"
      "{}<|tool_call_end|><|tool_calls_section_end|> done",
      {.content = " done", .reasoning = "I ask.", .calls = {{"now", "{}", "functions.now:0"}}});
}

TEST(DialectsTest, HarmonyChannels) {
  const auto make = parser_of("openai", "openai_gptoss", "<|start|>assistant");
  test::expect_parsed(
      make,
      "<|channel|>analysis<|message|>Hm, to=functions.x <b>.<|end|><|start|>assistant<|channel|>commentary"
      "<|message|>Wait. <|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json"
      "<|message|>{\"a\": \"<|end|>\"}<|call|>",
      {.content = "Wait. ",
       .reasoning = "Hm, to=functions.x <b>.",
       .calls = {{"now", "{\"a\": \"<|end|>\"}"}}});
  test::expect_parsed(
      make,
      "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
      "<|start|>assistant<|channel|>final<|message|>C\n<|return|>",
      {.content = "C\n", .reasoning = "AB"});
  test::expect_parsed(make, "<|channel|>final<|message|>plain", {.content = "plain"});
}

// Behind a call whose last tag is left out, the next one is another, or no call.
TEST(DialectsTest, HarmonyCallsWithoutTheirLastTag) {
  const auto make = parser_of("openai");
  const std::string now = "<|channel|>commentary to=functions.now<|message|>{\"a\": 1}";
  const std::string weather = "<|channel|>commentary to=functions.weather<|message|>";
  test::expect_parsed(make, now + "<|start|>assistant" + weather + "{\"b\": 2}",
                      {.calls = {{"now", "{\"a\": 1}"}, {"weather", "{\"b\": 2}"}}});
  test::expect_parsed(make, now + "\n" + now + "<|call|>",
                      {.calls = {{"now", "{\"a\": 1}"}, {"now", "{\"a\": 1}"}}});
  test::expect_parsed(make, now + "<|start|>assistant" + weather + "no",
                      {.content = weather + "no", .calls = {{"now", "{\"a\": 1}"}}});
}

TEST(DialectsTest, ReasoningInOtherTags) {
  const auto expect = [](std::string_view dialect, std::string_view text, const Parsed& expected) {
    const OutputFormat format{.reasoning = &reasoning_dialect(dialect)};
    test::expect_parsed([=] { return make_output_parser(format, ""); }, text, expected);
  };
  const Parsed split{.content = "b", .reasoning = "a"};
  expect("granite",
         "Here's my thought process:a"
         "Here is my response:b",
         split);
  expect("granite", "<think>a</think><response>b</response>", split);
  expect("granite", "<think>a</think>b <response> </response>",
         {.content = "b <response> </response>", .reasoning = "a"});
  expect("mistral", "[THINK]a[/THINK]b", split);
  expect("gemma4", "<|channel>thought\na<channel|>b", split);
  expect("seed_oss", "<seed:think>a</seed:think>b", split);
  expect("seed_oss", "a</seed:think>b", split);
  expect("hunyuan_a13b", "<think>a</think><answer>b</answer>", split);
  expect("cohere_command3", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", split);
  expect("minimax_m2", "a</think>b", split);
}

// The calls of a rendered conversation, from the user's message on, are those that were rendered.
void expect_rendered_calls(const OutputFormat& format, const OrderedJson& context, std::string text) {
  std::string user;
  for (const OrderedJson& message : context.at("messages")) {
    if (message.at("role") == "user" && message.at("content").is_string()) user = message.at("content");
    if (!message.contains("tool_calls")) continue;
    const OrderedJson& calls = message.at("tool_calls");
    std::size_t begin = text.rfind(user) + user.size();
    const std::string name = calls[0].at("function").at("name");
    if (text.rfind(name) == text.npos || text.rfind(name) < begin) return;  // it does not render calls
    if (format.tool_calls == &tool_dialect("llama3_json")) begin = text.find('{', begin);
    const auto parser = make_output_parser(
        format, "",
        {.new_id = {}, .tools = std::make_shared<OrderedJson>(context.value("tools", OrderedJson()))});
    const Parsed parsed = test::parse_pieces(*parser, {std::string_view(text).substr(begin)});
    ASSERT_EQ(parsed.calls.size(), calls.size()) << parsed;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(parsed.calls[i].name, calls[i].at("function").at("name").get<std::string>());
      EXPECT_EQ(OrderedJson::parse(parsed.calls[i].arguments), calls[i].at("function").at("arguments"));
    }
    return;
  }
}

TEST(DialectsTest, PublishedTemplatesAreKnownAndTheirCallsAreFound) {
  const std::filesystem::path folder = QUIRE_SOURCE_DIR "/../shared/conformance/templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is absent";
  const std::map<std::string, std::pair<std::string, std::string>> known = {
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", {"hermes", ""}},
      {"Qwen-Qwen2.5-7B-Instruct", {"hermes", ""}},
      {"Qwen-Qwen3-0.6B", {"hermes", "qwen3"}},
      {"Qwen3-Coder", {"qwen3_coder", ""}},
      {"HuggingFaceTB-SmolLM3-3B", {"", "qwen3"}},
      {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", {"deepseek_v3", "deepseek_r1"}},
      {"ibm-granite-granite-3.3-2B-Instruct", {"granite", "granite"}},
      {"meta-llama-Llama-3.1-8B-Instruct", {"llama3_json", ""}},
      {"mistralai-Mistral-Nemo-Instruct-2407", {"mistral", ""}},
      {"openai-gpt-oss-120b", {"openai", "openai_gptoss"}},
      {"google-gemma-2-2b-it", {"", ""}},
      {"microsoft-Phi-3.5-mini-instruct", {"", ""}}};
  for (const auto& [name, dialects] : known) {
    SCOPED_TRACE(name);
    const std::filesystem::path path = folder / (name + ".json");
    const OrderedJson file = parse_ordered_json(read_text_file(path, 1 << 24), path.string());
    const OutputFormat format = guess_output_format(file.at("template").get<std::string>()).format;
    EXPECT_EQ(format.tool_calls == nullptr ? "" : format.tool_calls->names.front(), dialects.first);
    EXPECT_EQ(format.reasoning == nullptr ? "" : format.reasoning->names.front(), dialects.second);
    if (format.tool_calls == nullptr) continue;
    for (const OrderedJson& one : file.at("cases"))
      if (one.contains("output"))
        expect_rendered_calls({.tool_calls = format.tool_calls}, one.at("context"), one.at("output"));
  }
}

// As pydantic writes a field of a type of its own that has a default.
TEST(ArgumentTypesTest, OfAllSchemasAreThoseThatEachAllows) {
  const OrderedJson schema = OrderedJson::parse(R"({"$defs": {"Mode": {"enum": ["1", "2"], "type": "string"}},
      "properties": {"mode": {"allOf": [{"$ref": "#/$defs/Mode"}], "default": "1"},
                     "count": {"allOf": [{"minimum": 1}, {"type": ["integer", "null"]}]}, "any": {"allOf": []}}})");
  EXPECT_EQ(argument_types(&schema, "mode"), kTypeText);
  EXPECT_EQ(argument_types(&schema, "count"), kTypeInteger | kTypeNull);
  EXPECT_EQ(argument_types(&schema, "any"), kAnyType);
}

}  // namespace
}  // namespace quire::dialects
