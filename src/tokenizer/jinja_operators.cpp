// Python's operators on values.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"

namespace quire::jinja {
namespace {

[[noreturn]] void fail_operands(std::string_view symbol, const Value& left, const Value& right) {
  require_defined(left);
  require_defined(right);
  if (symbol == "+" && left.text() != nullptr)
    fail("can only concatenate str (not \"{}\") to str", type_name(right));
  fail("unsupported operand types for {}: '{}' and '{}'", symbol, type_name(left), type_name(right));
}

// Arithmetic on integers is done in twice their width, where it cannot overflow, and then narrowed.
__extension__ typedef __int128 Wide;

std::int64_t narrowed(Wide number) {
  if (number != static_cast<std::int64_t>(number)) fail_range();
  return static_cast<std::int64_t>(number);
}
double narrowed(double number) { return number; }

Wide raised(Wide base, Wide exponent) {
  Wide result = 1;
  while (exponent > 0) {
    if (exponent % 2 == 1) result = narrowed(result * base);
    exponent /= 2;
    if (exponent > 0) base = narrowed(base * base);
  }
  return result;
}

Wide floor_quotient(Wide a, Wide b) {
  const bool rounds_up = a % b != 0 && (a % b < 0) != (b < 0);
  return a / b - (rounds_up ? 1 : 0);
}

Wide floor_rest(Wide a, Wide b) { return a - floor_quotient(a, b) * b; }

double floor_rest(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) return rest + b;
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

double floor_quotient(double a, double b) {
  // As CPython: from the exact remainder, so that the quotient is not off by one.
  const double rest = floor_rest(a, b);
  const double quotient = (a - rest) / b;
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

double raised(double a, double b) {
  if (a == 0 && b < 0) fail("zero cannot be raised to a negative power");
  if (a < 0 && b != std::floor(b)) fail("a fractional power of a negative number is no real number");
  const double result = std::pow(a, b);
  if (std::isinf(result) && std::isfinite(a) && std::isfinite(b)) fail("a power is out of range");
  return result;
}

// Applies an operator to two integers (or bools), or to two other numbers.
template <typename Apply>
Value arithmetic(std::string_view symbol, const Value& left, const Value& right, const Apply& apply) {
  const bool trusted = left.trusted && right.trusted;
  if (const auto i = as_integer(left), j = as_integer(right); i && j)
    return {narrowed(apply(Wide{*i}, Wide{*j})), trusted};
  if (const auto x = as_number(left), y = as_number(right); x && y) return {apply(*x, *y), trusted};
  fail_operands(symbol, left, right);
}

template <typename Apply>
Value division(std::string_view symbol, const Value& left, const Value& right, const Apply& apply) {
  return arithmetic(symbol, left, right, [&](auto a, auto b) {
    if (b == 0) fail("division by zero");
    return apply(a, b);
  });
}

bool repeats(const Value& value) { return value.text() != nullptr || value.list_or_tuple() != nullptr; }

Value repeat(Runtime& runtime, const Value& sequence, std::int64_t times) {
  const std::size_t count = times > 0 ? static_cast<std::size_t>(times) : 0;
  if (const Text* text = sequence.text()) {
    if (text->empty()) return sequence;
    runtime.charge_product(count, text->memory());
    Text result;
    for (std::size_t i = 0; i < count; ++i) result.append(*text);
    return runtime.make(std::move(result));
  }
  const List* list = sequence.list();
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
  std::int64_t step = step_value.is_none() ? 1 : require_integer(step_value);
  if (step == 0) fail("slice step cannot be zero");
  step = std::clamp(step, -length - 1, length + 1);  // a longer one leads out as well
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
  return {first, step, distance <= 0 ? 0 : (distance - 1) / std::abs(step) + 1};
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
  for (const Character& character : Characters(text.bytes())) offsets.push_back(character.begin);
  offsets.push_back(text.size());
  Text result;
  for (std::int64_t i = 0; i < indices.count; ++i) {
    const std::size_t at = static_cast<std::size_t>(indices.start + i * indices.step);
    result.append(text, offsets[at], offsets[at + 1]);
  }
  return runtime.make(std::move(result));
}

// For HTML, unless it is safe; the result is like other texts.
Value escaped(Runtime& runtime, const Value& value) {
  if (value.is_safe) return {value.data};
  return map_code_points(runtime, value, [](std::string& out, char32_t c) {
    constexpr const char* kEscapes[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const std::size_t special = std::u32string_view(U"&<>\"'").find(c);
    if (special == std::u32string_view::npos) return append_utf8(out, c);
    out += kEscapes[special];
  });
}

}  // namespace

void fail_range() { fail("an integer leaves the range of 64 bits"); }

Value add(Runtime& runtime, const Value& left, const Value& right) {
  if (const Text* x = left.text(), *y = right.text(); x != nullptr && y != nullptr) {
    if (left.is_safe || right.is_safe)
      return {add(runtime, escaped(runtime, left), escaped(runtime, right)).data, true, true};
    runtime.charge(x->memory() + y->memory());
    Text text = *x;
    text.append(*y);
    return runtime.make(std::move(text));
  }
  if (const List* a = left.list_or_tuple(), *b = right.list_or_tuple();
      a != nullptr && b != nullptr && a->kind == b->kind) {
    runtime.charge_product(a->items.size() + b->items.size(), sizeof(Value));
    std::vector<Value> items = a->items;
    items.insert(items.end(), b->items.begin(), b->items.end());
    return runtime.make(std::move(items), a->kind);
  }
  return arithmetic("+", left, right, std::plus<>());
}

Value subtract(Runtime&, const Value& left, const Value& right) {
  return arithmetic("-", left, right, std::minus<>());
}

Value multiply(Runtime& runtime, const Value& left, const Value& right) {
  if (const auto times = as_integer(right); times && repeats(left)) return repeat(runtime, left, *times);
  if (const auto times = as_integer(left); times && repeats(right)) return repeat(runtime, right, *times);
  return arithmetic("*", left, right, std::multiplies<>());
}

Value divide(Runtime&, const Value& left, const Value& right) {
  return division("/", left, right,
                  [](auto a, auto b) { return static_cast<double>(a) / static_cast<double>(b); });
}

Value floor_divide(Runtime&, const Value& left, const Value& right) {
  return division("//", left, right, [](auto a, auto b) { return floor_quotient(a, b); });
}

Value modulo(Runtime& runtime, const Value& left, const Value& right) {
  if (left.text() != nullptr && !right.is_undefined())
    return runtime.make(percent_format(runtime, *left.text(), right));
  return division("%", left, right, [](auto a, auto b) { return floor_rest(a, b); });
}

Value power(Runtime& runtime, const Value& left, const Value& right) {
  if (const auto exponent = as_integer(right); exponent && *exponent < 0 && as_number(left))
    return power(runtime, left, {static_cast<double>(*exponent), right.trusted});
  return arithmetic("**", left, right, [](auto a, auto b) { return raised(a, b); });
}

Value with_sign(const Value& operand, bool negative) {
  require_defined(operand);
  if (const auto integer = as_integer(operand))
    return {narrowed(negative ? -Wide{*integer} : *integer), operand.trusted};
  const auto number = as_number(operand);
  if (!number) fail("bad operand type for unary sign: '{}'", type_name(operand));
  return {negative ? -*number : *number, operand.trusted};
}

bool not_equal(Runtime& runtime, const Value& a, const Value& b) { return !equal(runtime, a, b); }
bool less_equal(Runtime& runtime, const Value& a, const Value& b) {
  return less(runtime, a, b) || equal(runtime, a, b);
}
bool greater(Runtime& runtime, const Value& a, const Value& b) { return less(runtime, b, a); }
bool greater_equal(Runtime& runtime, const Value& a, const Value& b) { return less_equal(runtime, b, a); }
bool not_in(Runtime& runtime, const Value& a, const Value& b) { return !in(runtime, a, b); }

Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step) {
  require_defined(object);
  const List* list = object.sequence();
  if (object.text() == nullptr && list == nullptr) fail("'{}' object has no slices", type_name(object));
  const Indices indices =
      slice_indices(start, stop, step, static_cast<std::int64_t>(length_of(runtime, object)));
  if (const Text* text = object.text()) return slice_text(runtime, *text, indices);
  runtime.charge_product(static_cast<std::size_t>(indices.count), sizeof(Value));
  std::vector<Value> items;
  for (std::int64_t i = 0; i < indices.count; ++i)
    items.push_back(list->items[indices.start + i * indices.step]);
  return runtime.make(std::move(items), list->kind);
}

}  // namespace quire::jinja
