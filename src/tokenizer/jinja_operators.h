#pragma once

#include "tokenizer/jinja_ast.h"
#include "tokenizer/jinja_value.h"

namespace quire::jinja {

// Python's operators; Error for operands it would refuse, and where an integer leaves 64 bits.
Value apply_unary(Runtime& runtime, UnaryOp op, const Value& operand);
Value apply_binary(Runtime& runtime, BinaryOp op, const Value& left, const Value& right);
bool apply_compare(Runtime& runtime, CompareOp op, const Value& left, const Value& right);

// object[start:stop:step]; None where a bound is absent.
Value apply_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                  const Value& step);

[[noreturn]] void fail_undefined(const Value& value);

}  // namespace quire::jinja
