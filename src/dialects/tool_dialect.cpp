#include "dialects/tool_dialect.h"

#include <random>

#include "dialects/named_rows.h"

namespace quire::dialects {

// Sources: the models' chat templates.
const std::vector<ToolDialect>& tool_dialects() {
  constexpr std::string_view kParameters = R"({"name": "$N", "parameters": $J})";
  static const std::vector<ToolDialect> dialects = {
      {.name = "hermes", .aliases = "granite4 ernie45", .forms = {{.call = "<tool_call>\n$O\n</tool_call>"}}},
      {.name = "llama3_json",
       .aliases = "llama4_json",
       .forms = {{.call = "$O", .separator = "; "},
                 {.call = "<|python_tag|>$O", .separator = "; "},
                 {.call = "$O", .begin = "<|python_start|>", .separator = "; ", .end = "<|python_end|>"}},
       .object = kParameters,
       .ends_reasoning = true},
      {.name = "llama4_pythonic",
       .aliases = "pythonic",
       .forms =
           {{.call = "$N($P", .begin = "[", .separator = ", ", .end = "]"},
            {.call = "$N($P", .begin = "<|python_start|>[", .separator = ", ", .end = "]<|python_end|>"}}},
      {.name = "mistral",
       .forms = {{.call = "$O", .begin = "[TOOL_CALLS] [", .separator = ", ", .end = "]"},
                 {.call = "[TOOL_CALLS]$N$([CALL_ID]$I$)$[[ARGS]$]$J", .separator = ""}},
       .ends_reasoning = true,
       .ids = CallIds::kNine},
      {.name = "mistral_args",
       .forms = {{.call = "[TOOL_CALLS]$N$([CALL_ID]$I$)$[[ARGS]$]$J", .separator = ""},
                 {.call = "$O", .begin = "[TOOL_CALLS] [", .separator = ", ", .end = "]"}},
       .ends_reasoning = true,
       .ids = CallIds::kNine},
      {.name = "qwen3_coder",
       .aliases = "qwen3_xml mimo step3p5",
       .forms = {{.call = "<tool_call>\n<function=$N>\n$X</function>\n</tool_call>"}},
       .parameter = "<parameter=$K>\n$V\n</parameter>\n"},
      {.name = "seed_oss",
       .forms = {{.call = "<seed:tool_call>\n<function=$N>\n$X</function>\n</seed:tool_call>"}},
       .parameter = "<parameter=$K>$V</parameter>\n"},
      {.name = "glm45",
       .aliases = "glm4_moe",
       .forms = {{.call = "<tool_call>$N\n$X</tool_call>"}},
       .parameter = "<arg_key>$K</arg_key>\n<arg_value>$V</arg_value>\n"},
      {.name = "glm47",
       .forms = {{.call = "<tool_call>$N$X</tool_call>", .separator = ""}},
       .parameter = "<arg_key>$K</arg_key><arg_value>$V</arg_value>"},
      {.name = "minimax_m2",
       .forms = {{.call = "<invoke name=\"$N\">\n$X</invoke>",
                  .begin = "<minimax:tool_call>\n",
                  .end = "\n</minimax:tool_call>"}},
       .parameter = "<parameter name=\"$K\">$V</parameter>\n"},
      {.name = "deepseek_v3",
       .forms = {{.call =
                      "<｜tool▁call▁begin｜>function<｜tool▁sep｜>$N\n```json\n$J\n```<｜tool▁call▁end｜>",
                  .begin = "<｜tool▁calls▁begin｜>",
                  .end = "<｜tool▁calls▁end｜>"}},
       .ends_reasoning = true},
      {.name = "deepseek_v31",
       .forms = {{.call = "<｜tool▁call▁begin｜>$N<｜tool▁sep｜>$J<｜tool▁call▁end｜>",
                  .begin = "<｜tool▁calls▁begin｜>",
                  .separator = "",
                  .end = "<｜tool▁calls▁end｜>"}},
       .ends_reasoning = true},
      {.name = "deepseek_v32",
       .forms = {{.call = "<｜DSML｜invoke name=\"$N\">\n$X</｜DSML｜invoke>",
                  .begin = "<｜DSML｜function_calls>\n",
                  .end = "\n</｜DSML｜function_calls>"}},
       .parameter = "<｜DSML｜parameter name=\"$K\" string=\"$T\">$V</｜DSML｜parameter>\n"},
      {.name = "kimi_k2",
       .forms = {{.call = "<|tool_call_begin|>functions.$N:$I<|tool_call_argument_begin|>$J<|tool_call_end|>",
                  .begin = "<|tool_calls_section_begin|>",
                  .separator = "",
                  .end = "<|tool_calls_section_end|>"}},
       .ends_reasoning = true,
       .ids = CallIds::kWritten},
      {.name = "openai",
       .aliases = "gpt_oss harmony",
       .forms = {{.call =
                      "<|channel|>commentary$_to=functions.$N$[ <|constrain|>$]$[json$]$(code$)<|message|>"
                      "$J<|call|>",
                  .separator = "<|start|>assistant"},
                 {.call = "<|channel|>analysis$_to=functions.$N$[ <|constrain|>$]$[json$]$(code$)<|message|>"
                          "$J<|call|>"},
                 {.call = "to=functions.$N<|channel|>commentary$[ <|constrain|>$]$[json$]$(code$)<|message|>"
                          "$J<|call|>"}},
       .lead = "<|start|>assistant",
       .ends_reasoning = true},
      {.name = "granite",
       .forms = {{.call = "$O", .begin = "<|tool_call|>[", .separator = ", ", .end = "]"},
                 {.call = "$O", .begin = "<tool_call>[", .separator = ", ", .end = "]"}}},
      {.name = "granite-20b-fc", .forms = {{.call = "<function_call> $O"}}},
      {.name = "phi4_mini_json",
       .aliases = "phi4_mini",
       .forms = {{.call = "$O", .begin = "functools[", .separator = ", ", .end = "]"},
                 {.call = "$O", .begin = "<|tool_call|>[", .separator = ", ", .end = "]<|/tool_call|>"}}},
      {.name = "gemma4",
       .forms = {{.call = "<|tool_call>call:$N{$G<tool_call|>", .separator = ""}},
       .quote = "<|\"|>",
       .ends_reasoning = true},
      {.name = "functiongemma",
       .aliases = "function_gemma",
       .forms = {{.call = "<start_function_call>call:$N{$G<end_function_call>", .separator = ""}},
       .quote = "<escape>",
       .ends_reasoning = true},
      {.name = "cohere_command3",
       .aliases = "cohere",
       .forms = {{.call = "$O",
                  .begin = "<|START_ACTION|>[\n    ",
                  .separator = ",\n    ",
                  .end = "\n]<|END_ACTION|>"}},
       .object = R"({"tool_call_id": "$I", "tool_name": "$N", "parameters": $J})",
       .ends_reasoning = true},
      {.name = "olmo3",
       .forms = {{.call = "$N($P", .begin = "<function_calls>", .end = "</function_calls>"}}},
      {.name = "lfm2",
       .forms = {{.call = "$N($P",
                  .begin = "<|tool_call_start|>[",
                  .separator = ", ",
                  .end = "]<|tool_call_end|>"}},
       .ends_reasoning = true},
      {.name = "hunyuan_a13b",
       .aliases = "jamba",
       .forms = {{.call = "$O", .begin = "<tool_calls>[", .separator = ", ", .end = "]</tool_calls>"}}},
      {.name = "internlm",
       .forms = {{.call = "<|action_start|><|plugin|>\n$O<|action_end|>"}},
       .object = kParameters,
       .ends_reasoning = true},
      {.name = "longcat", .forms = {{.call = "<longcat_tool_call>\n$O\n</longcat_tool_call>"}}},
  };
  return dialects;
}

const ToolDialect& tool_dialect(std::string_view name) {
  return named_row(tool_dialects(), name, "tool-call");
}

std::string random_call_id(CallIds ids) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string id = ids == CallIds::kNine ? "" : "call_";
  for (int i = ids == CallIds::kNine ? 9 : 24; i > 0; --i) id += kLetters[letter(random)];
  return id;
}

}  // namespace quire::dialects
