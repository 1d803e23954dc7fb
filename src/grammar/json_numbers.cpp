// Numbers within bounds, and multiples of numbers, as expressions over their decimal digits.

#include "base/json.h"
#include "grammar/json_text.h"

namespace quire::grammar {
namespace {

const ByteSet kDigits = byte_range('0', '9'), kNotZero = byte_range('1', '9');

// The digits above `digit`, or those below it.
ByteSet digits_beyond(char digit, bool above) {
  return above ? byte_range(digit + 1U, '9') : byte_range('0', digit - 1U);
}

}  // namespace

// What may follow a whole part that equals the bound's: a point and a fraction, or nothing.
ExprId JsonText::fraction(std::string_view digits, bool at_least, bool exclusive) const {
  const ExprId digit = ex_.bytes(kDigits), any_digits = ex_.repeat(digit);
  // From the end of the bound's digits to the first: what follows after i of them.
  ExprId rest = kNothing;
  if (at_least)
    rest = exclusive ? ex_.concat({any_digits, ex_.bytes(kNotZero), any_digits}) : any_digits;
  else if (!exclusive)
    rest = ex_.repeat(ex_.literal("0"));
  for (std::size_t i = digits.size(); i-- > 0;)
    rest = ex_.any_of({ex_.concat(ex_.literal(digits.substr(i, 1)), rest),
                       ex_.concat(ex_.bytes(digits_beyond(digits[i], at_least)), any_digits),
                       at_least ? kNothing : kEmpty});
  const ExprId some = ex_.concat(ex_.literal("."), ex_.all_of({ex_.concat(digit, any_digits), rest}));
  const bool may_be_absent = at_least ? digits.empty() && !exclusive : !digits.empty() || !exclusive;
  return may_be_absent ? ex_.optional(some) : some;
}

// Numbers without a sign and an exponent on one side of a bound's magnitude.
ExprId JsonText::magnitude(const Decimal& bound, bool at_least, bool exclusive) const {
  const ExprId digit = ex_.bytes(kDigits), first = ex_.bytes(kNotZero);
  const ExprId any_fraction = ex_.optional(ex_.concat({ex_.literal("."), digit, ex_.repeat(digit)}));
  const std::string_view whole = bound.whole;
  const auto length = static_cast<std::uint32_t>(whole.size());
  ExprId same = fraction(bound.fraction, at_least, exclusive);
  for (std::uint32_t i = length; i-- > 0;) {
    ByteSet beyond = digits_beyond(whole[i], at_least);
    if (i == 0 && length > 1) beyond.reset('0');
    const std::uint32_t left = length - i - 1;
    same = ex_.any_of({ex_.concat(ex_.literal(whole.substr(i, 1)), same),
                       ex_.concat({ex_.bytes(beyond), ex_.repeat(digit, left, left), any_fraction})});
  }
  ExprId other = kNothing;  // of another length
  if (at_least)
    other = ex_.concat({first, ex_.repeat(digit, length), any_fraction});
  else if (length > 1)
    other = ex_.concat(ex_.any_of({ex_.literal("0"), ex_.concat(first, ex_.repeat(digit, 0, length - 2))}),
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
  return ex_.concat(ex_.optional(ex_.literal("-")),
                    ex_.multiple(*digits, static_cast<std::uint32_t>(factor.fraction.size())));
}

}  // namespace quire::grammar
