#pragma once

#include <string>

#include "base/json.h"
#include "dialects/tables.h"

namespace quire::dialects {

struct ToolGrammarOptions {
  std::string name = {};                        // of the only tool that may be called; empty: any
  bool parallel = true;                         // more than one call
  bool required = true;                         // or else there may be an answer instead of calls:
  OrderedJson answer = nullptr;                 // the format of a structural tag; null: any text
  const ReasoningDialect* reasoning = nullptr;  // whose tags stand around an answer
};

// A structural tag (docs/structured_output.md), as JSON text, of the texts in which a model of the dialect
// calls these tools: each is parsed back to calls whose arguments have the tool's schema. tools: a list, as
// OpenAI's requests have it. Tags stand in it as text, which a vocabulary's special tokens match there.
// Of schemas of tools that are not strict, what is not enforced is left out. What is copied is at most 1 MiB.
// Error, with a JSON pointer, for a `name` that no tool has, and for a schema that cannot be written in the
// dialect: one of arguments between tags that refers to itself, or, of a tool that is `strict`, one that asks
// of text what is not enforced there, such as a pattern.
std::string tool_grammar(const ToolDialect& dialect, const OrderedJson& tools,
                         const ToolGrammarOptions& options);

// The same of an answer alone.
std::string answer_grammar(const ReasoningDialect& reasoning, OrderedJson answer);

}  // namespace quire::dialects
