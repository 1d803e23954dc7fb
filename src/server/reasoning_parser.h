#pragma once

#include <memory>
#include <string_view>

#include "quire/sampling_params.h"
#include "server/output_parser.h"

namespace quire::server {

// How a model marks its reasoning: it comes first and ends with </think>. Both take <think> at the start of
// the output, after white space, as its beginning. Where that tag is missing:
//   qwen3        the output is content, unless the prompt ended with <think>
//   deepseek_r1  the output is reasoning, unless the prompt ended with </think>
enum class ReasoningFormat { kQwen3, kDeepSeekR1 };

std::string_view name(ReasoningFormat format);
// Of the names above. Error on any other.
ReasoningFormat parse_reasoning_format(std::string_view name);

// `prompt` is the text that the output continues, or its end. Text passes as it stands, line breaks beside
// the tags too, as in vLLM; only the white space before <think> is dropped. Behind </think> all is content,
// further tags as well. Reasoning that the end of the text cuts off stays reasoning.
std::unique_ptr<OutputParser> make_reasoning_parser(ReasoningFormat format, std::string_view prompt);

// Where `outputs` begin to hold: behind the reasoning, if such a parser would find any. Where the output need
// not begin with <think>, it does, or is held from its beginning on.
void hold_behind_reasoning(ReasoningFormat format, std::string_view prompt, StructuredOutputs& outputs);

}  // namespace quire::server
