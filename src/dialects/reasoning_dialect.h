#pragma once

#include <string_view>
#include <vector>

namespace quire::dialects {

// How a family of models marks its reasoning, which comes first: a row of the table.
struct ReasoningDialect {
  std::string_view name;                              // vLLM's
  std::string_view aliases = "";                      // separated by spaces
  std::vector<std::string_view> begin = {"<think>"};  // after white space at the start of the output
  std::vector<std::string_view> end = {"</think>"};
  // Tags around other text, and not content. One that is a plain text is so at the start of content, and one
  // that closes it, </…>, behind such a one.
  std::vector<std::string_view> dropped = {};
  bool implicit = false;  // the output begins within reasoning, unless the prompt ended with an end tag
  bool repeats = false;   // reasoning may come again behind content
};

const std::vector<ReasoningDialect>& reasoning_dialects();
// By name or alias. Error on any other.
const ReasoningDialect& reasoning_dialect(std::string_view name);

}  // namespace quire::dialects
