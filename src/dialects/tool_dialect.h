#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::dialects {

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
  std::string_view call;
  std::string_view begin = "";
  std::string_view separator = "\n";
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
  std::string_view name;          // vLLM's
  std::string_view aliases = "";  // separated by spaces
  // A grammar has the first; all are read. One that begins with $ is read at the start of the content or
  // behind a call alone.
  std::vector<ToolForm> forms;
  std::string_view parameter = "";
  std::string_view object = R"({"name": "$N", "arguments": $J})";
  std::string_view quote = "";  // on both sides of Gemma's strings
  std::string_view lead = "";   // what else may stand before calls, and is not content
  bool ends_reasoning = false;  // its tags are special tokens: they are never only mentioned
  CallIds ids = CallIds::kPrefixed;
};

const std::vector<ToolDialect>& tool_dialects();
// By name or alias. Error on any other.
const ToolDialect& tool_dialect(std::string_view name);

// Random, of letters and digits.
std::string random_call_id(CallIds ids);

}  // namespace quire::dialects
