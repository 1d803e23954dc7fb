#include "dialects/reasoning_dialect.h"

#include "dialects/named_rows.h"

namespace quire::dialects {

// Sources: the models' chat templates.
const std::vector<ReasoningDialect>& reasoning_dialects() {
  static const std::vector<ReasoningDialect> dialects = {
      {.name = "qwen3",
       .aliases = "deepseek_v3 deepseek_v4 glm45 glm47 holo2 mimo nemotron_v3 olmo3 step3p5"},
      {.name = "deepseek_r1", .aliases = "kimi_k2 minimax_m2 step3", .implicit = true},
      {.name = "granite",
       .begin = {"Here is my thought process:", "Here's my thought process:", "<think>"},
       .end = {"Here is my response:", "Here's my response:", "</think>"},
       .dropped = {"<response>", "</response>"}},
      {.name = "ernie45", .dropped = {"<response>", "</response>"}, .implicit = true},
      {.name = "hunyuan_a13b", .dropped = {"<answer>", "</answer>"}},
      {.name = "seed_oss", .begin = {"<seed:think>"}, .end = {"</seed:think>"}, .implicit = true},
      {.name = "mistral", .aliases = "magistral", .begin = {"[THINK]"}, .end = {"[/THINK]"}},
      {.name = "gemma4", .begin = {"<|channel>thought\n"}, .end = {"<channel|>"}},
      {.name = "cohere_command3",
       .aliases = "cohere",
       .begin = {"<|START_THINKING|>"},
       .end = {"<|END_THINKING|>"},
       .dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>"}},
      {.name = "openai_gptoss",
       .aliases = "gpt_oss harmony",
       .begin = {"<|channel|>analysis<|message|>"},
       .end = {"<|end|>"},
       .dropped = {"<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
                   "<|channel|>final <|constrain|>json<|message|>", "<|end|>", "<|return|>"},
       .repeats = true},
  };
  return dialects;
}

const ReasoningDialect& reasoning_dialect(std::string_view name) {
  return named_row(reasoning_dialects(), name, "reasoning");
}

}  // namespace quire::dialects
