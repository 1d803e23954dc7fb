#include "dialects/output_format.h"

#include <algorithm>
#include <span>

#include "base/format.h"
#include "dialects/pattern.h"

namespace quire::dialects {
namespace {

// What tells a dialect in a template, `also` too where it stands; the first found decides.
struct Mark {
  std::string_view text, dialect, also = {};
};

constexpr Mark kToolMarks[] = {
    {"<|channel|>commentary", "openai"},
    {"[TOOL_CALLS]", "mistral_args", "[ARGS]"},
    {"[TOOL_CALLS]", "mistral"},
    {"<minimax:tool_call>", "minimax_m2"},
    {"<seed:tool_call>", "seed_oss"},
    {"｜DSML｜", "deepseek_v32"},
    {"<|tool_calls_section_begin|>", "kimi_k2"},
    {"<｜tool▁sep｜>", "deepseek_v3", "```json"},
    {"<｜tool▁sep｜>", "deepseek_v31"},
    {"<start_function_call>", "functiongemma"},
    {"<|tool_call>", "gemma4"},
    {"<|START_ACTION|>", "cohere_command3"},
    {"<function_calls>", "olmo3"},
    {"<|tool_call_start|>", "lfm2"},
    {"<longcat_tool_call>", "longcat"},
    {"<tool_calls>", "hunyuan_a13b"},
    {"<|action_start|>", "internlm"},
    {"<function=", "qwen3_coder"},
    {"<arg_key>", "glm45", "</arg_key>\n<arg_value>"},
    {"<arg_key>", "glm45", "</arg_key>\\n<arg_value>"},
    {"<arg_key>", "glm47"},
    {"functools[", "phi4_mini_json"},
    {"<|/tool|>", "phi4_mini_json"},
    {"<|tool_call|>", "granite"},
    {"<function_call>", "granite-20b-fc"},
    {"<tool_call>", "hermes"},
    {"func_name1(", "llama4_pythonic"},
    {"<|python_tag|>", "llama3_json"},
    {"dictionary of argument name and its value", "llama3_json"},  // Llama 3.2
    {"<|python_start|>", "llama4_pythonic"},
};

constexpr Mark kReasoningMarks[] = {
    {"<|channel|>analysis", "openai_gptoss"},
    {"<|START_THINKING|>", "cohere_command3"},
    {"[THINK]", "mistral"},
    {"<|channel>", "gemma4"},
    {"<seed:think>", "seed_oss"},
    {"Here is my thought process:", "granite"},
    {"</think>", "granite", "<response>"},
    {"</think>", "hunyuan_a13b", "<answer>"},
    {"</think>", "deepseek_r1", "<|im_middle|>"},  // Kimi K2
    {"</think>", "deepseek_r1", "<｜Assistant｜>"},
    {"<think>", "deepseek_r1", "<｜Assistant｜>"},
    {"</think>", "qwen3"},
    {"<think>", "qwen3"},
};

const Mark* find_mark(std::span<const Mark> marks, std::string_view chat_template) {
  const auto has = [&](std::string_view text) { return chat_template.find(text) != chat_template.npos; };
  const auto found =
      std::ranges::find_if(marks, [&](const Mark& mark) { return has(mark.text) && has(mark.also); });
  return found == marks.end() ? nullptr : &*found;
}

std::string said(const Mark& mark, std::string_view subject) {
  return format_text("{} ({} has {}{}{})", mark.dialect, subject, mark.text, mark.also.empty() ? "" : " and ",
                     mark.also);
}

}  // namespace

std::vector<std::string> tags_of(const OutputFormat& format) {
  std::vector<std::string> tags;
  if (format.reasoning != nullptr)
    for (const auto* texts : {&format.reasoning->begin, &format.reasoning->end, &format.reasoning->dropped})
      tags.insert(tags.end(), texts->begin(), texts->end());
  if (format.tool_calls == nullptr) return tags;
  for (const CompiledForm& form : compiled(*format.tool_calls).forms)
    for (const Pattern& pattern : form.parts)
      for (const Element& element : pattern)
        if (element.kind == Element::Kind::kLiteral) tags.push_back(element.text);
  return tags;
}

OutputFormatGuess guess_output_format(std::string_view chat_template) {
  OutputFormatGuess guess;
  const Mark* tools = find_mark(kToolMarks, chat_template);
  const Mark* reasoning = find_mark(kReasoningMarks, chat_template);
  if (tools != nullptr) guess.format.tool_calls = &tool_dialect(tools->dialect);
  if (reasoning != nullptr) guess.format.reasoning = &reasoning_dialect(reasoning->dialect);
  guess.reason =
      format_text("tool calls: {}; reasoning: {}",
                  tools == nullptr ? "none known to the chat template" : said(*tools, "the chat template"),
                  reasoning == nullptr ? "none" : said(*reasoning, "it"));
  return guess;
}

}  // namespace quire::dialects
