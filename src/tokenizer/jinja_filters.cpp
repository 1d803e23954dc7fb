// The filters of single values.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

// A word begins after white space or an opening bracket or hyphen.
Value title_filter(const Invocation& call) {
  bool begins = true;
  return map_code_points(call.runtime, call.self, [&](std::string& out, char32_t c) {
    begins ? append_upper(out, c) : append_lower(out, c);
    begins = is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  });
}

Value string_filter(const Invocation& call) { return {&text_of(call.runtime, call.self)}; }

Value replace_filter(const Invocation& call) {
  const auto text = [&](const Value& value) -> const Text& { return text_of(call.runtime, value); };
  const std::int64_t count = call.given(2) == nullptr ? -1 : call.integer(2, -1);
  return replace(call.runtime, text(call.self), text(*call[0]), text(*call[1]), count);
}

// Python's indent arguments: a text, or a number of spaces.
Text indention_of(const Invocation& call, std::size_t parameter, std::int64_t absent) {
  if (call[parameter] != nullptr && call[parameter]->text() != nullptr) return call.text(parameter);
  const auto width = static_cast<std::size_t>(std::max<std::int64_t>(call.integer(parameter, absent), 0));
  call.runtime.charge(width);
  return Text(std::string(width, ' '), true);
}

Value indent_filter(const Invocation& call) {
  Runtime& runtime = call.runtime;
  const Text indention = indention_of(call, 0, 4);
  Text text = require_text(call.self);
  text.append("\n", true);
  const std::vector<Text> lines = split_lines(runtime, text);
  Text result;
  if (call.flag(1)) result.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    runtime.charge(indention.memory() + lines[i].memory());
    if (i > 0) result.append("\n", true);
    if (i > 0 && (call.flag(2) || !lines[i].empty())) result.append(indention);
    result.append(lines[i]);
  }
  return runtime.make(std::move(result));
}

Value tojson_filter(const Invocation& call) {
  JsonStyle style;
  style.ensure_ascii = call.flag(0);
  style.sort_keys = call.flag(3);
  if (call.given(1) != nullptr) {
    style.item_separator = ",";
    style.indent = indention_of(call, 1, 0).bytes();
  }
  if (call.given(2) != nullptr) {
    const std::span<const Value> separators = iterate(call.runtime, *call[2]);
    if (separators.size() != 2) fail("tojson takes two separators, not {}", separators.size());
    style.item_separator = require_text(separators[0]).bytes();
    style.key_separator = require_text(separators[1]).bytes();
  }
  return call.runtime.make(to_json(call.runtime, call.self, style));
}

Value length_filter(const Invocation& call) { return count_value(length_of(call.runtime, call.self)); }

Value default_filter(const Invocation& call) {
  if (!call.self.is_undefined() && !(call.flag(1) && !truth(call.self))) return call.self;
  return call[0] != nullptr ? *call[0] : call.runtime.make("", true);
}

// Python's int(text): spaces around it, a sign, digits with single underscores between.
std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  std::string digits;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  if (text.empty() || text.front() == '_' || text.back() == '_' ||
      text.find("__") != std::string_view::npos || text.front() == '-') {
    return std::nullopt;
  }
  if (negative) digits = "-";
  std::copy_if(text.begin(), text.end(), std::back_inserter(digits), [](char c) { return c != '_'; });
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) fail("an integer leaves the range of 64 bits");
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || text.front() == '-' || text.find('(') != std::string_view::npos) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) {  // too large, or too small
    const bool small = text.find("e-") != std::string_view::npos || text.find("E-") != std::string_view::npos;
    number = small ? 0 : std::numeric_limits<double>::infinity();
  }
  return negative ? -number : number;
}

std::optional<double> to_float(Runtime& runtime, const Value& value) {
  require_defined(value);
  if (const Text* text = value.text()) return parse_float(strip_spaces(runtime, *text).bytes());
  return as_number(value);
}

bool is_trusted(const Value& value) {
  return value.text() != nullptr ? value.text()->trusted() : value.trusted;
}

Value int_filter(const Invocation& call) {
  const std::int64_t base = call.integer(1, 10);
  if (base < 2 || base > 36) fail("int takes a base from 2 to 36, not {}", base);
  const bool trusted = is_trusted(call.self);
  if (const auto integer = as_integer(call.self)) return {*integer, trusted};
  if (const Text* text = call.self.text()) {
    const Text stripped = strip_spaces(call.runtime, *text);
    if (const auto integer = parse_integer(stripped.bytes(), static_cast<int>(base)))
      return {*integer, trusted};
  }
  const std::optional<double> number = to_float(call.runtime, call.self);
  if (!number || !std::isfinite(*number)) return call[0] != nullptr ? *call[0] : Value{std::int64_t{0}};
  if (std::abs(*number) >= 0x1p63) fail_range();
  return {static_cast<std::int64_t>(*number), trusted};
}

Value float_filter(const Invocation& call) {
  const std::optional<double> number = to_float(call.runtime, call.self);
  if (number) return {*number, is_trusted(call.self)};
  return call[0] != nullptr ? *call[0] : Value{0.0};
}

Value abs_filter(const Invocation& call) {
  const std::optional<double> number = as_number(call.self);
  if (!number) fail("bad operand type for abs(): '{}'", type_name(call.self));
  return with_sign(call.self, *number < 0);
}

Value format_filter(const Invocation& call) {
  if (!call.arguments.named.empty()) fail("format takes no named arguments");
  const Value values = call.runtime.make(call.arguments.positional, ListKind::kTuple);
  return call.runtime.make(percent_format(call.runtime, text_of(call.runtime, call.self), values));
}

constexpr Builtin kScalarFilters[] = {
    {"abs", abs_filter},
    {"capitalize", capitalize},
    {"count", length_filter},
    {"d", default_filter, {"default_value", "boolean"}},
    {"default", default_filter, {"default_value", "boolean"}},
    {"float", float_filter, {"default"}},
    {"format", format_filter, {kAnything}},
    {"indent", indent_filter, {"width", "first", "blank"}},
    {"int", int_filter, {"default", "base"}},
    {"length", length_filter},
    {"lower", mapped<append_lower>},
    {"replace", replace_filter, {"old", "new", "count"}, 2},
    {"safe", string_filter},
    {"string", string_filter},
    {"title", title_filter},
    {"tojson", tojson_filter, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", strip, {"chars"}},
    {"upper", mapped<append_upper>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) {
  const Builtin* filter = find_builtin(kScalarFilters, name);
  return filter != nullptr ? filter : find_builtin(sequence_filters(), name);
}

}  // namespace quire::jinja
