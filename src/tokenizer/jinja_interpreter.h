#pragma once

#include <optional>
#include <vector>

#include "tokenizer/jinja_ast.h"

namespace quire::jinja {

// Runs a template. `variables`, by NameId, are what the context and the globals define. An Error names the
// template and the line, except for one that the template raised itself.
Text run_template(const Template& source, Runtime& runtime, std::vector<std::optional<Value>> variables);

}  // namespace quire::jinja
