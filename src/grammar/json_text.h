#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json_fwd.h"
#include "grammar/expressions.h"
#include "grammar/grammar.h"
#include "grammar/utf8.h"

namespace quire::grammar {

// From 2^64 on and below -2^63, numbers are kept as the nearest that a double has, which is another one.
bool may_be_rounded(const OrderedJson& number);

// A bound of a number, as decimal digits: 12.5 is "12" and "5". Digits end in no zero behind the point.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;

  explicit Decimal(const OrderedJson& number);
  std::string text() const {
    return (negative ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
  }
  std::optional<std::uint32_t> as_factor() const;  // the digits as an integer, where it is below 10^9
};

// The parts of JSON as expressions. Strings have more than one spelling: what must be told from other strings
// (keys, and strings with a pattern) is "canonical", every character in the shortest way.
class JsonText {
 public:
  JsonText(Expressions& expressions, const Source& source);

  ExprId comma() const { return comma_; }
  ExprId colon() const { return colon_; }
  ExprId any_value();  // a rule; objects and arrays in one another as deep as one likes
  ExprId any_object();
  ExprId any_array();

  // With quotation marks.
  ExprId quoted(ExprId body) const;
  ExprId any_string() const { return quoted(ex_.repeat(character_)); }
  ExprId character() const { return character_; }
  ExprId canonical_character(const CharacterSet& set) const;
  ExprId canonical_text() const { return canonical_; }  // between the quotation marks
  ExprId pattern(std::string_view regex);  // holds of canonical texts those that it matches somewhere
  // Nothing for a format that is not known; GrammarError for one that is, but not supported.
  std::optional<ExprId> format(std::string_view name) const;

  ExprId integer() const { return integer_; }
  ExprId number() const { return number_; }
  ExprId plain_number() const { return plain_number_; }  // without an exponent
  ExprId not_integer() const { return not_integer_; }
  // Numbers without an exponent that are at least a bound, or at most.
  ExprId bounded(const Decimal& bound, bool at_least, bool exclusive = false) const;
  ExprId multiple_of(const Decimal& factor) const;

  // A value, with space between its parts.
  ExprId literal(const OrderedJson& value) const;
  // A separated list between its brackets, with space: of at least one item, or of none too.
  ExprId list(std::string_view brackets, ExprId items, bool may_be_empty) const;

 private:
  ExprId magnitude(const Decimal& bound, bool at_least, bool exclusive) const;
  ExprId fraction(std::string_view digits, bool at_least, bool exclusive) const;

  Expressions& ex_;
  ExprId space_, comma_, colon_, character_, canonical_, integer_, number_, plain_number_, not_integer_;
  Recursive any_value_;
  std::unordered_map<std::string, ExprId> patterns_;
};

}  // namespace quire::grammar
