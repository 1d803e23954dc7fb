#pragma once

#include <string_view>

#include "base/json_fwd.h"
#include "grammar/expressions.h"
#include "grammar/grammar.h"
#include "grammar/json_text.h"
#include "grammar/vocabulary.h"

namespace quire::grammar {

// A context-free grammar as llama.cpp's GBNF and EBNF spell it (name ::= ..., [a-z] a class of characters) or
// as Lark does (name: ..., NAMES of terminals, /regular expressions/, [...] optional, %ignore, %import
// common.X). In all of them <[12]> and <name> are a special token. The rule root, or start, is what a text
// must be. Rules may begin with themselves, but not behind what may be empty. GrammarError says the line and
// column of what is wrong.
ExprId compile_rules(Expressions& expressions, std::string_view text, const Vocabulary& vocabulary);

// The id of the special token of this name. GrammarError if there is none.
int special_token(const Vocabulary& vocabulary, std::string_view name);

// {"type": "structural_tag", "format": {...}}, or the older form with "structures" and "triggers": free text
// and marked parts. GrammarError with the JSON pointer of what is wrong, or not supported.
ExprId compile_structural_tag(Expressions& expressions, JsonText& json, const Source& source,
                              const OrderedJson& tag, const Vocabulary& vocabulary);

}  // namespace quire::grammar
