#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "grammar/expressions.h"
#include "grammar/utf8.h"

namespace quire::grammar {

// What one character of a set is in the text: itself in UTF-8, or as JSON strings have it.
using CharacterExpr = std::function<ExprId(const CharacterSet&)>;

// Regular expressions as ECMA-262 has them, and \UHHHHHHHH, without what looks around or back, but ahead
// where the text begins. Quantifiers may be lazy, which changes nothing of the language. With `search` the
// expression may match anywhere in the text, except where anchors hold it, with any bytes behind; else it
// matches the whole text. GrammarError says at which character what is wrong.
ExprId regex_expression(Expressions& expressions, std::string_view pattern, const CharacterExpr& character,
                        bool search);

// What a string stands for, each of whose escapes is a character's in a regular expression.
std::u32string string_characters(std::string_view text);

// Of a whole text in UTF-8.
ExprId utf8_regex(Expressions& expressions, std::string_view pattern);

}  // namespace quire::grammar
