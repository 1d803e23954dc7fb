#pragma once

#include <string_view>

#include "tokenizer/jinja_ast.h"

namespace quire::jinja {

// Error names `where` and the line: syntax, an unknown statement, filter or test, or a source beyond the
// limits.
Template parse_template(std::string_view source, std::string_view where, const Limits& limits);

}  // namespace quire::jinja
