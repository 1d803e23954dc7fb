// Numbers within bounds, and multiples of numbers, as expressions over their decimal digits.

#include <string>

#include "grammar/json_text.h"

namespace quire::grammar {
namespace {

// The digits above `digit`, or those below it.
ByteSet digits_beyond(char digit, bool above) {
  ByteSet set;
  for (char other = '0'; other <= '9'; ++other)
    if (above ? other > digit : other < digit) set.set(static_cast<unsigned char>(other));
  return set;
}

const ByteSet kAllDigits = byte_range('0', '9');

}  // namespace

// What may follow a whole part that equals the bound's: a point and a fraction, or nothing.
ExprId JsonText::fraction(std::string_view digits, bool at_least, bool exclusive) const {
  const ExprId any_digits = ex_.repeat(ex_.bytes(kAllDigits), 0, kNoLimit);
  // From the end of the bound's digits to the first: what follows after i of them.
  ExprId rest = kNothing;
  if (at_least)
    rest = exclusive ? ex_.concat({any_digits, ex_.bytes(byte_range('1', '9')), any_digits}) : any_digits;
  else if (!exclusive)
    rest = ex_.repeat(ex_.bytes(bytes_of("0")), 0, kNoLimit);
  for (std::size_t i = digits.size(); i-- > 0;) {
    std::vector<ExprId> parts = {ex_.concat(ex_.bytes(bytes_of(digits.substr(i, 1))), rest),
                                 ex_.concat(ex_.bytes(digits_beyond(digits[i], at_least)), any_digits)};
    if (!at_least) parts.push_back(kEmpty);
    rest = ex_.any_of(std::move(parts));
  }
  const ExprId some_digits = ex_.concat(ex_.bytes(kAllDigits), any_digits);
  std::vector<ExprId> parts = {ex_.concat(ex_.bytes(bytes_of(".")), ex_.all_of({some_digits, rest}))};
  if (at_least ? digits.empty() && !exclusive : !digits.empty() || !exclusive) parts.push_back(kEmpty);
  return ex_.any_of(std::move(parts));
}

// Numbers without a sign and an exponent on one side of a bound's magnitude.
ExprId JsonText::magnitude(const Decimal& bound, bool at_least, bool exclusive) const {
  const ExprId digit = ex_.bytes(kAllDigits), first = ex_.bytes(byte_range('1', '9'));
  const ExprId any_fraction =
      ex_.optional(ex_.concat({ex_.bytes(bytes_of(".")), digit, ex_.repeat(digit, 0, kNoLimit)}));
  const std::string& whole = bound.whole;
  const auto length = static_cast<std::uint32_t>(whole.size());
  ExprId same = fraction(bound.fraction, at_least, exclusive);
  for (std::size_t i = whole.size(); i-- > 0;) {
    ByteSet beyond = digits_beyond(whole[i], at_least);
    if (i == 0 && length > 1) beyond = beyond & ~bytes_of("0");
    const auto left = static_cast<std::uint32_t>(whole.size() - i - 1);
    same = ex_.any_of({ex_.concat(ex_.bytes(bytes_of(std::string_view(whole).substr(i, 1))), same),
                       ex_.concat({ex_.bytes(beyond), ex_.repeat(digit, left, left), any_fraction})});
  }
  ExprId other = kNothing;
  if (at_least)
    other = ex_.concat({first, ex_.repeat(digit, length, kNoLimit), any_fraction});
  else if (length > 1)
    other = ex_.concat(
        ex_.any_of({ex_.bytes(bytes_of("0")), ex_.concat(first, ex_.repeat(digit, 0, length - 2))}),
        any_fraction);
  return ex_.any_of({same, other});
}

ExprId JsonText::bounded(const Decimal& bound, bool at_least, bool exclusive) const {
  const Decimal zero(0.0);
  const ExprId same_sign = magnitude(bound, at_least != bound.negative, exclusive);
  const ExprId other_sign = at_least == bound.negative ? magnitude(zero, true, false) : kNothing;
  const ExprId positive = bound.negative ? other_sign : same_sign,
               negative = bound.negative ? same_sign : other_sign;
  return ex_.any_of(
      {positive, ex_.concat(ex_.literal("-"), ex_.all_of({negative, magnitude(zero, true, true)}))});
}

ExprId JsonText::multiple_of(const Decimal& factor) const {
  const auto digits = factor.as_factor();
  if (!digits) throw GrammarError("multipleOf must be above 0, and of less than 10 digits to be supported");
  return ex_.concat(ex_.optional(ex_.bytes(bytes_of("-"))),
                    ex_.multiple(*digits, static_cast<std::uint32_t>(factor.fraction.size())));
}

}  // namespace quire::grammar
