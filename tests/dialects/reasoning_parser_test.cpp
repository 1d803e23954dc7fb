#include "dialects/expect_parsed.h"
#include "dialects/output_format.h"
#include "dialects/tables.h"
#include "expect_error.h"

namespace quire::dialects {
namespace {

using test::Parsed;

test::MakeParser reasoning_parser(std::string_view dialect, std::string prompt = "<|im_start|>assistant\n") {
  return [=] { return make_output_parser({.reasoning = &reasoning_dialect(dialect)}, prompt); };
}

void expect_split(const test::MakeParser& make, std::string_view text, const std::string& reasoning,
                  const std::string& content) {
  test::expect_parsed(make, text, {.content = content, .reasoning = reasoning});
}

TEST(ReasoningParserTest, ReasoningInTags) {
  for (const std::string_view format : {"qwen3", "deepseek_r1"}) {
    const auto make = reasoning_parser(format);
    expect_split(make, "<think>\nHm, ünï <b> </thin.\n</think>\n\nAnswer.", "\nHm, ünï <b> </thin.\n",
                 "\n\nAnswer.");
    expect_split(make, "\n <think>a</think>b", "a", "b");
    expect_split(make, "<think>\n\n</think>\n\nb", "\n\n", "\n\nb");
    expect_split(make, "<think></think>", "", "");
    expect_split(make, "<think>a<think>b</think>c</think><think>d</think>", "a<think>b",
                 "c</think><think>d</think>");
    expect_split(make, "<think>cut off </th", "cut off </th", "");
    expect_split(make, "<think>a<</think>b", "a<", "b");
  }
}

TEST(ReasoningParserTest, QwenWithoutATagIsContent) {
  const auto make = reasoning_parser("qwen3");
  for (const std::string_view text : {"", " \n", "Answer", "\n\nHere: <think>a</think>", "<thin",
                                      "<<think>a</think>", "<th <think>a</think>", "</think>a"}) {
    expect_split(make, text, "", std::string(text));
  }
}

TEST(ReasoningParserTest, DeepSeekBeginsWithin) {
  const auto make = reasoning_parser("deepseek_r1");
  expect_split(make, "\nHm.\n</think>\n\nAnswer", "\nHm.\n", "\n\nAnswer");
  expect_split(make, "</think>Answer", "", "Answer");
  expect_split(make, "<</think>Answer", "<", "Answer");
  expect_split(make, "Hm.", "Hm.", "");
  expect_split(make, " <thi", " <thi", "");
}

// Some templates put the tags into the prompt: <think> itself, or an empty thought that forbids one.
TEST(ReasoningParserTest, ThePromptMayHoldTheTag) {
  for (const std::string_view format : {"qwen3", "deepseek_r1"}) {
    const auto within = reasoning_parser(format, "<|im_start|>assistant\n<think>\n");
    expect_split(within, "Hm.\n</think>\n\nAnswer", "Hm.\n", "\n\nAnswer");
    expect_split(within, "<think>Hm.</think>Answer", "Hm.", "Answer");
    expect_split(within, "cut off", "cut off", "");
    const auto after = reasoning_parser(format, "<|im_start|>assistant\n<think>\n\n</think>\n\n");
    expect_split(after, "Answer</think>", "", "Answer</think>");
    expect_split(after, "<think>a</think>", "", "<think>a</think>");
  }
}

TEST(ReasoningParserTest, GivesOutAllThatIsCertain) {
  const auto parser = reasoning_parser("qwen3")();
  EXPECT_TRUE(parser->parse("<think").empty());
  EXPECT_EQ(parser->parse(">a</").reasoning, "a");
  EXPECT_EQ(parser->parse("b\n").reasoning, "</b\n");
  EXPECT_TRUE(parser->parse("</think>").empty());
  EXPECT_EQ(parser->parse("</").content, "</");
}

TEST(ReasoningParserTest, Names) {
  for (const ReasoningDialect& dialect : reasoning_dialects())
    EXPECT_EQ(&reasoning_dialect(dialect.names.front()), &dialect);
  EXPECT_EQ(&reasoning_dialect("glm45"), &reasoning_dialect("qwen3"));
  expect_error([] { reasoning_dialect("xml"); }, {"xml", "qwen3, deepseek_r1, granite"});
}

TEST(OutputFormatTest, ReasoningThenCalls) {
  const OutputFormat format{.reasoning = &reasoning_dialect("qwen3"), .tool_calls = &tool_dialect("hermes")};
  const test::MakeParser make = [=] {
    return make_output_parser(format, "assistant\n", {.new_id = test::counting_ids(), .tools = {}});
  };
  constexpr std::string_view kCall = "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}}\n</tool_call>";
  test::expect_parsed(
      make, format_text("<think>\nI call {}\n</think>\n\n{}\n{}", kCall, kCall, kCall),
      {.reasoning = format_text("\nI call {}\n", kCall), .calls = {{"f", "{\"a\":1}"}, {"f", "{\"a\":1}"}}});
  test::expect_parsed(make, format_text("<think>a</think>\n\nNow <{}", kCall),
                      {.content = "\n\nNow <", .reasoning = "a", .calls = {{"f", "{\"a\":1}"}}});
  test::expect_parsed(make, "<think>a</think>\n<tool_call>", {.content = "\n<tool_call>", .reasoning = "a"});
  test::expect_parsed(make, kCall, {.calls = {{"f", "{\"a\":1}"}}});
}

TEST(OutputFormatTest, OneOrNone) {
  constexpr std::string_view kText = "<think>a</think>[TOOL_CALLS]f[ARGS]{}";
  const auto parse = [&](const OutputFormat& format) {
    return test::parse_pieces(*make_output_parser(format, "", {.new_id = test::counting_ids(), .tools = {}}),
                              {kText});
  };
  EXPECT_EQ(parse({}), (Parsed{.content = std::string(kText)}));
  EXPECT_EQ(parse({.reasoning = &reasoning_dialect("qwen3"), .tool_calls = nullptr}),
            (Parsed{.content = "[TOOL_CALLS]f[ARGS]{}", .reasoning = "a"}));
  EXPECT_EQ(parse({.reasoning = nullptr, .tool_calls = &tool_dialect("mistral")}),
            (Parsed{.content = "<think>a</think>", .calls = {{"f", "{}", "id1"}}}));
}

TEST(OutputFormatTest, GuessesFromTheTemplate) {
  const auto expect_guess = [](std::string_view text, std::string_view tools, std::string_view reasoning,
                               const std::string& reason) {
    const OutputFormatGuess guess = guess_output_format(text);
    EXPECT_EQ(guess.format.tool_calls, tools.empty() ? nullptr : &tool_dialect(tools));
    EXPECT_EQ(guess.format.reasoning, reasoning.empty() ? nullptr : &reasoning_dialect(reasoning));
    EXPECT_EQ(guess.reason, reason);
  };
  expect_guess("{{ messages }}", {}, {}, "tool calls: none known to the chat template; reasoning: none");
  expect_guess("<tool_call>\n{\"name\": <function-name>}</tool_call> {% if '</think>' in content %}",
               "hermes", "qwen3",
               "tool calls: hermes (the chat template has <tool_call>); reasoning: qwen3 (it has </think>)");
  expect_guess("<tool_call>\n<function=example>", "qwen3_coder", {},
               "tool calls: qwen3_coder (the chat template has <function=); reasoning: none");
  expect_guess("{{ '<|python_tag|>' }}", "llama3_json", {},
               "tool calls: llama3_json (the chat template has <|python_tag|>); reasoning: none");
  expect_guess("{{ '[TOOL_CALLS] [' }}", "mistral", {},
               "tool calls: mistral (the chat template has [TOOL_CALLS]); reasoning: none");
  expect_guess("{{ '<｜Assistant｜><think>\\n' }}", {}, "deepseek_r1",
               "tool calls: none known to the chat template; reasoning: deepseek_r1 (it has <think> and "
               "<｜Assistant｜>)");
}

TEST(ReasoningParserTest, ThePromptSaysBetweenWhichTagsReasoningStands) {
  const auto tags = [](std::string_view dialect, const char* prompt) {
    const ReasoningTags found = reasoning_tags(reasoning_dialect(dialect), prompt);
    return std::pair(found.begin, found.end);
  };
  using Span = std::pair<std::string, std::string>;
  EXPECT_EQ(tags("qwen3", "<|assistant|>"), Span("<think>", "</think>"));
  EXPECT_EQ(tags("qwen3", "<|assistant|><think>\n"), Span("", "</think>"));
  EXPECT_EQ(tags("qwen3", "<think>\n\n</think>\n\n"), Span("", ""));
  EXPECT_EQ(tags("deepseek_r1", "<|assistant|>"), Span("", "</think>"));
  EXPECT_EQ(tags("deepseek_r1", "</think>"), Span("", ""));
}

}  // namespace
}  // namespace quire::dialects
