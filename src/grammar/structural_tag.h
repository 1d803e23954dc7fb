#pragma once

#include "base/json_fwd.h"
#include "grammar/expressions.h"
#include "grammar/grammar.h"
#include "grammar/json_text.h"

namespace quire::grammar {

// {"type": "structural_tag", "format": {...}}, or the older form with "structures" and "triggers": free text
// and marked parts. GrammarError with the JSON pointer of what is wrong, or not supported.
ExprId compile_structural_tag(Expressions& expressions, JsonText& json, const Source& source,
                              const OrderedJson& tag, const Vocabulary& vocabulary);

}  // namespace quire::grammar
