#include "dialects/tables.h"

#include <ranges>

#include "base/error.h"

namespace quire::dialects {
namespace {

template <typename Row>
const Row& named_row(std::span<const Row> rows, std::string_view name, std::string_view kind) {
  for (const Row& row : rows)
    if (std::ranges::find(row.names, name) != row.names.end()) return row;
  const auto first_name = [](const Row& row) { return row.names.front(); };
  fail("no {} parser has the name {}; there are {}", kind, name,
       join_text(std::views::transform(rows, first_name), ", "));
}

// Sources of both tables: the models' chat templates.
constexpr std::string_view kWithParameters = R"({"name": "$N", "parameters": $J})";
constexpr ToolForm kMistralNames = {"[TOOL_CALLS]$N$([CALL_ID]$I$)$[[ARGS]$]$J", ""};
constexpr ToolForm kMistralList = {"$O", ", ", "[TOOL_CALLS] [", "]"};
constexpr ToolDialect kToolDialects[] = {
    {.names = {"hermes", "granite4", "ernie45"}, .forms = {{"<tool_call>\n$O\n</tool_call>"}}},
    {.names = {"llama3_json", "llama4_json"},
     .forms = {{"$O", "; "}, {"<|python_tag|>$O", "; "}, {"$O", "; ", "<|python_start|>", "<|python_end|>"}},
     .object = kWithParameters,
     .ends_reasoning = true},
    {.names = {"llama4_pythonic", "pythonic"},
     .forms = {{"$N($P", ", ", "[", "]"}, {"$N($P", ", ", "<|python_start|>[", "]<|python_end|>"}}},
    {.names = {"mistral"},
     .forms = {kMistralList, kMistralNames},
     .ends_reasoning = true,
     .ids = CallIds::kNine},
    {.names = {"mistral_args"},
     .forms = {kMistralNames, kMistralList},
     .ends_reasoning = true,
     .ids = CallIds::kNine},
    {.names = {"qwen3_coder", "qwen3_xml", "mimo", "step3p5"},
     .forms = {{"<tool_call>\n<function=$N>\n$X</function>\n</tool_call>"},
               {"<function=$N>\n$X</function>$(\n</tool_call>$)"}},
     .parameter = "<parameter=$K>\n$V\n</parameter>\n"},
    {.names = {"seed_oss"},
     .forms = {{"<seed:tool_call>\n<function=$N>\n$X</function>\n</seed:tool_call>"}},
     .parameter = "<parameter=$K>$V</parameter>\n"},
    {.names = {"glm45", "glm4_moe"},
     .forms = {{"<tool_call>$N\n$X</tool_call>"}},
     .parameter = "<arg_key>$K</arg_key>\n<arg_value>$V</arg_value>\n"},
    {.names = {"glm47"},
     .forms = {{"<tool_call>$N$X</tool_call>", ""}},
     .parameter = "<arg_key>$K</arg_key><arg_value>$V</arg_value>"},
    {.names = {"minimax_m2"},
     .forms = {{"<invoke name=\"$N\">\n$X</invoke>", "\n", "<minimax:tool_call>\n",
                "\n</minimax:tool_call>"}},
     .parameter = "<parameter name=\"$K\">$V</parameter>\n"},
    {.names = {"deepseek_v3"},
     .forms = {{"<｜tool▁call▁begin｜>function<｜tool▁sep｜>$N\n```json\n$J\n```<｜tool▁call▁end｜>", "\n",
                "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}},
     .ends_reasoning = true},
    {.names = {"deepseek_v31"},
     .forms = {{"<｜tool▁call▁begin｜>$N<｜tool▁sep｜>$J<｜tool▁call▁end｜>", "", "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>"}},
     .ends_reasoning = true},
    {.names = {"deepseek_v32"},
     .forms = {{"<｜DSML｜invoke name=\"$N\">\n$X</｜DSML｜invoke>", "\n", "<｜DSML｜function_calls>\n",
                "\n</｜DSML｜function_calls>"}},
     .parameter = "<｜DSML｜parameter name=\"$K\" string=\"$T\">$V</｜DSML｜parameter>\n"},
    {.names = {"kimi_k2"},
     .forms = {{"<|tool_call_begin|>functions.$N:$I<|tool_call_argument_begin|>$J<|tool_call_end|>", "",
                "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}},
     .ends_reasoning = true,
     .ids = CallIds::kWritten},
    {.names = {"openai", "gpt_oss", "harmony"},
     .forms = {{"<|channel|>commentary$_to=functions.$N$[ "
                "<|constrain|>$]$[json$]$(code$)<|message|>$J$[<|call|>$]",
                "<|start|>assistant"},
               {"<|channel|>analysis$_to=functions.$N$[ "
                "<|constrain|>$]$[json$]$(code$)<|message|>$J$[<|call|>$]"},
               {"to=functions.$N<|channel|>commentary$[ "
                "<|constrain|>$]$[json$]$(code$)<|message|>$J$[<|call|>$]"}},
     .lead = "<|start|>assistant",
     .ends_reasoning = true},
    {.names = {"granite"}, .forms = {{"$O", ", ", "<|tool_call|>[", "]"}, {"$O", ", ", "<tool_call>[", "]"}}},
    {.names = {"granite-20b-fc"}, .forms = {{"<function_call> $O"}}},
    {.names = {"phi4_mini_json", "phi4_mini"},
     .forms = {{"$O", ", ", "functools[", "]"}, {"$O", ", ", "<|tool_call|>[", "]<|/tool_call|>"}}},
    {.names = {"gemma4"},
     .forms = {{"<|tool_call>call:$N{$G<tool_call|>", ""}},
     .quote = "<|\"|>",
     .ends_reasoning = true},
    {.names = {"functiongemma", "function_gemma"},
     .forms = {{"<start_function_call>call:$N{$G<end_function_call>", ""}},
     .quote = "<escape>",
     .ends_reasoning = true},
    {.names = {"cohere_command3", "cohere"},
     .forms = {{"$O", ",\n    ", "<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"}},
     .object = R"({"tool_call_id": "$I", "tool_name": "$N", "parameters": $J})",
     .ends_reasoning = true},
    {.names = {"olmo3"}, .forms = {{"$N($P", "\n", "<function_calls>", "</function_calls>"}}},
    {.names = {"lfm2"},
     .forms = {{"$N($P", ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"}},
     .ends_reasoning = true},
    {.names = {"hunyuan_a13b", "jamba"}, .forms = {{"$O", ", ", "<tool_calls>[", "]</tool_calls>"}}},
    {.names = {"internlm"},
     .forms = {{"<|action_start|><|plugin|>\n$O<|action_end|>"}},
     .object = kWithParameters,
     .ends_reasoning = true},
    {.names = {"longcat"}, .forms = {{"<longcat_tool_call>\n$O\n</longcat_tool_call>"}}},
};

constexpr ReasoningDialect kReasoningDialects[] = {
    {.names = {"qwen3", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "holo2", "mimo", "nemotron_v3",
               "olmo3", "step3p5"}},
    {.names = {"deepseek_r1", "kimi_k2", "minimax_m2", "step3"}, .implicit = true},
    {.names = {"granite"},
     .begin = {"Here is my thought process:", "Here's my thought process:", "<think>"},
     .end = {"Here is my response:", "Here's my response:", "</think>"},
     .dropped = {"<response>", "</response>"}},
    {.names = {"ernie45"}, .dropped = {"<response>", "</response>"}, .implicit = true},
    {.names = {"hunyuan_a13b"}, .dropped = {"<answer>", "</answer>"}},
    {.names = {"seed_oss"}, .begin = {"<seed:think>"}, .end = {"</seed:think>"}, .implicit = true},
    {.names = {"mistral", "magistral"}, .begin = {"[THINK]"}, .end = {"[/THINK]"}},
    {.names = {"gemma4"}, .begin = {"<|channel>thought\n"}, .end = {"<channel|>"}},
    {.names = {"cohere_command3", "cohere"},
     .begin = {"<|START_THINKING|>"},
     .end = {"<|END_THINKING|>"},
     .dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
     .answer = "<|START_RESPONSE|>",
     .answer_end = "<|END_RESPONSE|>"},
    {.names = {"openai_gptoss", "gpt_oss", "harmony"},
     .begin = {"<|channel|>analysis<|message|>"},
     .end = {"<|end|>"},
     .dropped = {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
                 "<|channel|>final <|constrain|>json<|message|>", "<|end|>", "<|return|>"},
     .repeats = true,
     .behind = "<|start|>assistant",
     .answer = "<|channel|>final<|message|>"},
};

}  // namespace

std::span<const ToolDialect> tool_dialects() { return kToolDialects; }
std::span<const ReasoningDialect> reasoning_dialects() { return kReasoningDialects; }

const ToolDialect& tool_dialect(std::string_view name) {
  return named_row(tool_dialects(), name, "tool-call");
}

const ReasoningDialect& reasoning_dialect(std::string_view name) {
  return named_row(reasoning_dialects(), name, "reasoning");
}

}  // namespace quire::dialects
