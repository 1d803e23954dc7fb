#pragma once

#include "tokenizer/jinja_value.h"

namespace quire::jinja {

// Python's operators; Error for operands it would refuse, and where an integer leaves 64 bits.
Value add(Runtime& runtime, const Value& left, const Value& right);
Value subtract(Runtime& runtime, const Value& left, const Value& right);
Value multiply(Runtime& runtime, const Value& left, const Value& right);
Value divide(Runtime& runtime, const Value& left, const Value& right);
Value floor_divide(Runtime& runtime, const Value& left, const Value& right);
Value modulo(Runtime& runtime, const Value& left, const Value& right);
Value power(Runtime& runtime, const Value& left, const Value& right);
Value with_sign(const Value& operand, bool negative);

[[noreturn]] void fail_range();

// The comparisons beside `equal` and `less`.
bool not_equal(Runtime& runtime, const Value& left, const Value& right);
bool less_equal(Runtime& runtime, const Value& left, const Value& right);
bool greater(Runtime& runtime, const Value& left, const Value& right);
bool greater_equal(Runtime& runtime, const Value& left, const Value& right);
bool in(Runtime& runtime, const Value& left, const Value& right);
bool not_in(Runtime& runtime, const Value& left, const Value& right);

// object[start:stop:step]; None where a bound is absent.
Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);

}  // namespace quire::jinja
