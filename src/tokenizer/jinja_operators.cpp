#include "tokenizer/jinja_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_unicode.h"

namespace quire::jinja {
namespace {

constexpr const char* kSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

[[noreturn]] void fail_operands(BinaryOp op, const Value& left, const Value& right) {
  if (left.is_undefined()) fail_undefined(left);
  if (right.is_undefined()) fail_undefined(right);
  if (op == BinaryOp::kAdd && left.text() != nullptr) {
    fail("can only concatenate str (not \"{}\") to str", type_name(right));
  }
  fail("unsupported operand types for {}: '{}' and '{}'", kSymbols[static_cast<std::size_t>(op)],
       type_name(left), type_name(right));
}

[[noreturn]] void fail_range() { fail("an integer leaves the range of 64 bits"); }

std::int64_t add(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) fail_range();
  return sum;
}

std::int64_t subtract(std::int64_t a, std::int64_t b) {
  std::int64_t difference = 0;
  if (__builtin_sub_overflow(a, b, &difference)) fail_range();
  return difference;
}

std::int64_t multiply(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail_range();
  return product;
}

double add(double a, double b) { return a + b; }
double subtract(double a, double b) { return a - b; }
double multiply(double a, double b) { return a * b; }

std::int64_t integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result = multiply(result, base);
    exponent /= 2;
    if (exponent > 0) base = multiply(base, base);
  }
  return result;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  if (b == -1) return subtract(0, a);
  const bool rounds_up = a % b != 0 && (a % b < 0) != (b < 0);
  return a / b - (rounds_up ? 1 : 0);
}

std::int64_t floor_modulo(std::int64_t a, std::int64_t b) {
  if (b == -1) return 0;
  const std::int64_t rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

double floor_modulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) return rest + b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double floor_divide(double a, double b) {
  // As CPython: from the exact remainder, so that the quotient is not off by one.
  const double rest = floor_modulo(a, b);
  const double quotient = (a - rest) / b;
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double float_power(double a, double b) {
  if (a == 0 && b < 0) fail("zero cannot be raised to a negative power");
  if (a < 0 && b != std::floor(b)) fail("a fractional power of a negative number is no real number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("a power is out of range");
  return result;
}

Value power(double a, double b, bool trusted) { return {float_power(a, b), trusted}; }

Value power(std::int64_t a, std::int64_t b, bool trusted) {
  if (b < 0) return power(static_cast<double>(a), static_cast<double>(b), trusted);
  return {integer_power(a, b), trusted};
}

template <typename Number>
Value arithmetic(BinaryOp op, Number a, Number b, bool trusted) {
  const bool divides = op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && b == 0) fail("division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return {add(a, b), trusted};
    case BinaryOp::kSubtract:
      return {subtract(a, b), trusted};
    case BinaryOp::kMultiply:
      return {multiply(a, b), trusted};
    case BinaryOp::kDivide:
      return {static_cast<double>(a) / static_cast<double>(b), trusted};
    case BinaryOp::kFloorDivide:
      return {floor_divide(a, b), trusted};
    case BinaryOp::kModulo:
      return {floor_modulo(a, b), trusted};
    case BinaryOp::kPower:
      break;
  }
  return power(a, b, trusted);
}

bool is_list_or_tuple(const List* list) {
  return list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple);
}

Value add_sequences(Runtime& runtime, const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    runtime.charge(left.text()->memory() + right.text()->memory());
    Text sum = *left.text();
    sum.append(*right.text());
    return runtime.make(std::move(sum));
  }
  const List *a = left.list(), *b = right.list();
  if (!is_list_or_tuple(a) || !is_list_or_tuple(b) || a->kind != b->kind) {
    fail_operands(BinaryOp::kAdd, left, right);
  }
  runtime.charge_product(a->items.size() + b->items.size(), sizeof(Value));
  std::vector<Value> items = a->items;
  items.insert(items.end(), b->items.begin(), b->items.end());
  return runtime.make(std::move(items), a->kind);
}

Value repeat(Runtime& runtime, const Value& sequence, std::int64_t times, const Value& left,
             const Value& right) {
  const std::size_t count = times > 0 ? static_cast<std::size_t>(times) : 0;
  if (const Text* text = sequence.text()) {
    if (text->empty()) return sequence;
    runtime.charge_product(count, text->memory());
    Text product;
    for (std::size_t i = 0; i < count; ++i) product.append(*text);
    return runtime.make(std::move(product));
  }
  const List* list = sequence.list();
  if (!is_list_or_tuple(list)) fail_operands(BinaryOp::kMultiply, left, right);
  if (list->items.empty()) return sequence;
  runtime.charge_product(count, list->items.size() * sizeof(Value));
  std::vector<Value> items;
  for (std::size_t i = 0; i < count; ++i) items.insert(items.end(), list->items.begin(), list->items.end());
  return runtime.make(std::move(items), list->kind);
}

// Python's slice.indices: the first index, the step and how many there are.
struct Indices {
  std::int64_t start, step, count;
};

Indices slice_indices(const Value& start, const Value& stop, const Value& step_value, std::int64_t length) {
  const std::int64_t step = step_value.is_none() ? 1 : require_integer(step_value);
  if (step == 0) fail("slice step cannot be zero");
  const std::int64_t lowest = step > 0 ? 0 : -1;
  const std::int64_t highest = step > 0 ? length : length - 1;
  const auto bound = [&](const Value& value, std::int64_t absent) {
    if (value.is_none()) return absent;
    const std::int64_t index = require_integer(value);
    return index < 0 ? std::max(index + length, lowest) : std::min(index, highest);
  };
  const std::int64_t first = bound(start, step > 0 ? lowest : highest);
  const std::int64_t last = bound(stop, step > 0 ? highest : lowest);
  const std::int64_t distance = step > 0 ? last - first : first - last;
  const std::uint64_t stride =
      step > 0 ? static_cast<std::uint64_t>(step) : -static_cast<std::uint64_t>(step);
  const std::int64_t count =
      distance <= 0 ? 0 : static_cast<std::int64_t>((static_cast<std::uint64_t>(distance) - 1) / stride) + 1;
  return {first, step, count};
}

Value slice_text(Runtime& runtime, const Text& text, const Indices& indices) {
  runtime.charge(text.memory());
  if (indices.count == 0) return runtime.make("", true);
  if (indices.step == 1) {
    const std::size_t begin = byte_offset(text.bytes(), static_cast<std::size_t>(indices.start));
    const std::size_t length =
        byte_offset(text.bytes().substr(begin), static_cast<std::size_t>(indices.count));
    return runtime.make(text.slice(begin, begin + length));
  }
  runtime.charge_product(text.size(), sizeof(std::size_t));
  std::vector<std::size_t> offsets;
  for (std::size_t offset = 0; offset < text.size(); next_code_point(text.bytes(), offset))
    offsets.push_back(offset);
  offsets.push_back(text.size());
  Text result;
  for (std::int64_t i = 0; i < indices.count; ++i) {
    const std::size_t at = static_cast<std::size_t>(indices.start + i * indices.step);
    result.append(text, offsets[at], offsets[at + 1]);
  }
  return runtime.make(std::move(result));
}

}  // namespace

void fail_undefined(const Value& value) { fail("{}", *value.get<Undefined>()->message); }

Value apply_unary(Runtime& runtime, UnaryOp op, const Value& operand) {
  runtime.charge();
  if (op == UnaryOp::kNot) return {!truth(operand)};
  if (operand.is_undefined()) fail_undefined(operand);
  if (const auto integer = as_integer(operand)) {
    if (op == UnaryOp::kPositive) return {*integer, operand.trusted};
    return arithmetic(BinaryOp::kSubtract, std::int64_t{0}, *integer, operand.trusted);
  }
  const auto number = as_number(operand);
  if (!number) fail("bad operand type for unary sign: '{}'", type_name(operand));
  return {op == UnaryOp::kPositive ? *number : -*number, operand.trusted};
}

Value apply_binary(Runtime& runtime, BinaryOp op, const Value& left, const Value& right) {
  const bool trusted = left.trusted && right.trusted;
  const auto i = as_integer(left), j = as_integer(right);
  if (i && j) return arithmetic(op, *i, *j, trusted);
  if (const auto x = as_number(left), y = as_number(right); x && y) return arithmetic(op, *x, *y, trusted);
  if (left.is_undefined() || right.is_undefined()) fail_operands(op, left, right);
  if (op == BinaryOp::kAdd) return add_sequences(runtime, left, right);
  if (op == BinaryOp::kMultiply && j) return repeat(runtime, left, *j, left, right);
  if (op == BinaryOp::kMultiply && i) return repeat(runtime, right, *i, left, right);
  if (op == BinaryOp::kModulo && left.text() != nullptr) {
    return runtime.make(percent_format(runtime, *left.text(), right));
  }
  fail_operands(op, left, right);
}

bool apply_compare(Runtime& runtime, CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual:
      return equal(runtime, left, right);
    case CompareOp::kNotEqual:
      return !equal(runtime, left, right);
    case CompareOp::kLess:
      return less(runtime, left, right);
    case CompareOp::kLessEqual:
      return less(runtime, left, right) || equal(runtime, left, right);
    case CompareOp::kGreater:
      return less(runtime, right, left);
    case CompareOp::kGreaterEqual:
      return less(runtime, right, left) || equal(runtime, left, right);
    case CompareOp::kIn:
      return contains(runtime, right, left);
    case CompareOp::kNotIn:
      break;
  }
  return !contains(runtime, right, left);
}

Value apply_slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
                  const Value& step) {
  if (object.is_undefined()) fail_undefined(object);
  const List* list = object.list();
  const bool sliceable = is_list_or_tuple(list) || (list != nullptr && list->kind == ListKind::kRange);
  if (object.text() == nullptr && !sliceable) fail("'{}' object has no slices", type_name(object));
  const Indices indices =
      slice_indices(start, stop, step, static_cast<std::int64_t>(length_of(runtime, object)));
  if (const Text* text = object.text()) return slice_text(runtime, *text, indices);
  runtime.charge_product(static_cast<std::size_t>(indices.count), sizeof(Value));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < indices.count; ++i) {
    items.push_back(list->items[static_cast<std::size_t>(indices.start + i * indices.step)]);
  }
  return runtime.make(std::move(items), list->kind);
}

}  // namespace quire::jinja
