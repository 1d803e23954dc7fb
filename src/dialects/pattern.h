#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "dialects/json_scanner.h"
#include "dialects/tables.h"

namespace quire::dialects {

// A pattern of ToolForm, taken apart.
struct Element {
  enum class Kind {
    kLiteral,     // `text`, which has no white space but that of $_
    kSpace,       // any white space or none; a grammar has `text`
    kLine,        // a line break or none
    kOptional,    // the next `size` elements may be absent; a grammar has them if `written`
    kName,        // $N, and so on
    kIndex,       // $I
    kObject,      // $O
    kJson,        // $J
    kPython,      // $P
    kGemma,       // $G
    kParameters,  // $X
    kKey,         // $K
    kValue,       // $V
    kTyped,       // $T
  };
  Kind kind = Kind::kLiteral;
  std::string text = {};
  std::size_t size = 0;
  bool written = false;
};
using Pattern = std::vector<Element>;

Pattern compile_pattern(std::string_view text);

// Of a tool's name.
inline bool is_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("_-.:/").find(c) != std::string_view::npos;
}

// The parts of a ToolForm.
struct CompiledForm {
  enum Part { kBegin, kCall, kSeparator, kEnd, kParameter, kParts };
  Pattern parts[kParts];
  std::string trigger;  // the first literal, which has to come; empty where it is `at_start`
  bool at_start() const { return trigger.empty(); }  // it is read where content begins alone
  std::size_t parameters = 0;  // where kParameters stands in the call, and the literal behind it
  std::size_t after_parameters = 0;
  std::vector<std::string> closers;  // literals that may still come behind a call that broke off
};

struct CompiledDialect {
  const ToolDialect* dialect;
  std::vector<CompiledForm> forms;
};

// Each is compiled once.
const CompiledDialect& compiled(const ToolDialect& dialect);

}  // namespace quire::dialects
