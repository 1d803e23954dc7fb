#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>

namespace quire::dialects {

// What a row of a constant table has several of.
template <typename T>
struct Few {
  constexpr Few(std::initializer_list<T> list) : size(list.size()) { std::ranges::copy(list, items); }
  constexpr const T* begin() const { return items; }
  constexpr const T* end() const { return items + size; }
  constexpr const T& front() const { return items[0]; }

  T items[10] = {};
  std::size_t size;
};

// One way of writing tool calls: `begin`, a call, any number of `separator` and call, `end`. Each is a
// pattern: a text in which stand for something
//   $N      the tool's name
//   $I      an id or a number of the call
//   $O      an object of name and arguments, as ToolDialect::object has it, keys in any order
//   $J      the arguments, a JSON object
//   $P      the arguments as Python writes them, up to and with ")": city="Paris", days=3)
//   $G      the same of Gemma, up to and with "}": city:<|"|>Paris<|"|>,days:3}
//   $X      any number of ToolDialect::parameter, of which each has
//   $K, $V  an argument's name, and its value: text, or JSON, as the tool's schema has it
//   $T      whether the value is text: true or false
//   $[ $]   what may be absent; $( $) the same, and a grammar does not write it
//   $_      exactly one space
// Other white space, and that beside a $, may be any, also none; beside $V it is one line break or none.
struct ToolForm {
  std::string_view call = "";
  std::string_view separator = "\n";
  std::string_view begin = "";
  std::string_view end = "";  // empty: each call stands for itself, and may come anywhere
};

// What a call's id is.
enum class CallIds {
  kPrefixed,  // call_ and 24 letters and digits, ours
  kNine,      // nine letters and digits, ours: others are refused by Mistral's templates
  kWritten,   // functions.NAME:$I, which the model has written and its template wants back
};

// How a family of models writes tool calls: a row of the table. docs/openai_api.md lists all.
struct ToolDialect {
  Few<std::string_view> names;  // vLLM's first
  // A grammar has the first; all are read. One that begins with $ or one byte is read at the start of the
  // content or behind a call alone.
  Few<ToolForm> forms;
  std::string_view parameter = "";
  std::string_view object = R"({"name": "$N", "arguments": $J})";
  std::string_view quote = "";  // on both sides of Gemma's strings
  std::string_view lead = "";   // what else may stand before calls, and is not content
  bool ends_reasoning = false;  // its tags are special tokens: they are never only mentioned
  CallIds ids = CallIds::kPrefixed;
};

// How a family of models marks its reasoning, which comes first: a row of the table.
struct ReasoningDialect {
  Few<std::string_view> names;                // as above
  Few<std::string_view> begin = {"<think>"};  // after white space at the start of the output
  Few<std::string_view> end = {"</think>"};
  // Tags around other text, and not content. One that is a plain text is so at the start of content, and one
  // that closes it, </…>, behind such a one.
  Few<std::string_view> dropped = {};
  bool implicit = false;  // the output begins within reasoning, unless the prompt ended with an end tag
  bool repeats = false;   // reasoning may come again behind content
  // Where a grammar holds what follows: what it follows besides the end tag, and what stands around an
  // answer.
  std::string_view behind = "", answer = "", answer_end = "";
};

std::span<const ToolDialect> tool_dialects();
std::span<const ReasoningDialect> reasoning_dialects();
// By one of its names. Error on any other.
const ToolDialect& tool_dialect(std::string_view name);
const ReasoningDialect& reasoning_dialect(std::string_view name);

}  // namespace quire::dialects
