#include "server/output_format.h"

#include <utility>

#include "base/format.h"

namespace quire::server {
namespace {

// Looks for reasoning first, then for calls in what is content; either parser may be null.
class SplittingParser : public OutputParser {
 public:
  SplittingParser(std::unique_ptr<OutputParser> reasoning, std::unique_ptr<OutputParser> tools)
      : reasoning_(std::move(reasoning)), tools_(std::move(tools)) {}

  OutputDelta parse(std::string_view new_text) override {
    if (reasoning_) return with_calls(reasoning_->parse(new_text));
    OutputDelta delta;
    delta.content = new_text;
    return with_calls(std::move(delta));
  }

  OutputDelta finish() override {
    OutputDelta delta = with_calls(reasoning_ ? reasoning_->finish() : OutputDelta());
    if (tools_) delta.content += tools_->finish().content;  // a text's end begins no call
    return delta;
  }

 private:
  OutputDelta with_calls(OutputDelta split) {
    if (!tools_) return split;
    OutputDelta delta = tools_->parse(split.content);
    delta.reasoning = std::move(split.reasoning);
    return delta;
  }

  std::unique_ptr<OutputParser> reasoning_;
  std::unique_ptr<OutputParser> tools_;
};

// What tells a format in a template; the first found decides.
struct ToolMark {
  std::string_view text;
  std::optional<ToolCallFormat> format;
};
constexpr ToolMark kToolMarks[] = {
    {"[TOOL_CALLS]", ToolCallFormat::kMistral},
    {"<function=", std::nullopt},  // Qwen3-Coder: no JSON between <tool_call> and </tool_call>
    {"<arg_key>", std::nullopt},   // GLM: nor here
    {"<tool_call>", ToolCallFormat::kHermes},
    {"<|python_tag|>", ToolCallFormat::kLlama3Json},
    {"dictionary of argument name and its value", ToolCallFormat::kLlama3Json},  // Llama 3.2
};

}  // namespace

std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, std::string_view prompt,
                                                 ToolParserOptions options) {
  std::unique_ptr<OutputParser> reasoning, tools;
  if (format.reasoning) reasoning = make_reasoning_parser(*format.reasoning, prompt);
  if (format.tool_calls) tools = make_tool_parser(*format.tool_calls, std::move(options));
  return std::make_unique<SplittingParser>(std::move(reasoning), std::move(tools));
}

OutputFormatGuess guess_output_format(std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  OutputFormatGuess guess;
  std::string& reason = guess.reason;
  reason = "tool calls: none known to the chat template";
  for (const auto& [text, format] : kToolMarks) {
    if (!has(text)) continue;
    guess.format.tool_calls = format;
    reason = format_text("tool calls: {} (the chat template has {})", format ? name(*format) : "none", text);
    break;
  }
  const std::string_view think = has("</think>") ? "</think>" : "<think>";
  if (!has(think)) {
    reason += "; reasoning: none";
    return guess;
  }
  constexpr std::string_view kDeepSeek = "<｜Assistant｜>";
  const bool deepseek = has(kDeepSeek);
  guess.format.reasoning = deepseek ? ReasoningFormat::kDeepSeekR1 : ReasoningFormat::kQwen3;
  reason += format_text("; reasoning: {} (it has {}{}{})", name(*guess.format.reasoning), think,
                        deepseek ? " and " : "", deepseek ? kDeepSeek : "");
  return guess;
}

}  // namespace quire::server
