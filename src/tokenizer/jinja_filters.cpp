#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

bool is_set(const Value* value) { return value != nullptr && truth(*value); }

template <Text (*transform)(Runtime&, const Text&)>
Value transform_filter(const Invocation& call) {
  bind(call, {});
  return call.runtime.make(transform(call.runtime, to_text(call.runtime, call.self)));
}

// A word begins after white space or an opening bracket or hyphen.
Text title(Runtime& runtime, const Text& text) {
  bool begins = true;
  return map_code_points(runtime, text, [&](std::string& out, char32_t c) {
    begins ? append_upper(out, c) : append_lower(out, c);
    begins = is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
  });
}

Text identity(Runtime&, const Text& text) { return text; }

Value trim_filter(const Invocation& call) {
  const auto args = bind(call, {"chars"});
  const Text* characters = args[0] == nullptr || args[0]->is_none() ? nullptr : &require_text(*args[0]);
  return call.runtime.make(strip(call.runtime, to_text(call.runtime, call.self), characters));
}

Value replace_filter(const Invocation& call) {
  const auto args = bind(call, {"old", "new", "count"}, 2);
  Runtime& runtime = call.runtime;
  const std::int64_t count = args[2] == nullptr || args[2]->is_none() ? -1 : require_integer(*args[2]);
  return runtime.make(replace(runtime, to_text(runtime, call.self), to_text(runtime, *args[0]),
                              to_text(runtime, *args[1]), count));
}

Value indent_filter(const Invocation& call) {
  const auto args = bind(call, {"width", "first", "blank"});
  Runtime& runtime = call.runtime;
  Text indention;
  if (args[0] != nullptr && args[0]->text() != nullptr) {
    indention = *args[0]->text();
  } else {
    const std::int64_t width = args[0] == nullptr ? 4 : std::max<std::int64_t>(require_integer(*args[0]), 0);
    runtime.charge(static_cast<std::size_t>(width));
    indention = Text(std::string(static_cast<std::size_t>(width), ' '), true);
  }
  Text text = require_text(call.self);
  text.append("\n", true);
  const std::vector<Text> lines = split_lines(runtime, text);
  Text result;
  if (is_set(args[1])) result.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    runtime.charge(indention.memory() + lines[i].memory());
    if (i > 0) result.append("\n", true);
    if (i > 0 && (is_set(args[2]) || !lines[i].empty())) result.append(indention);
    result.append(lines[i]);
  }
  return runtime.make(std::move(result));
}

Value tojson_filter(const Invocation& call) {
  const auto args = bind(call, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = is_set(args[0]);
  style.sort_keys = is_set(args[3]);
  if (args[1] != nullptr && !args[1]->is_none()) {
    style.item_separator = ",";
    if (const Text* text = args[1]->text()) {
      style.indent = text->bytes();
    } else {
      const std::int64_t width = std::max<std::int64_t>(require_integer(*args[1]), 0);
      call.runtime.charge(static_cast<std::size_t>(width));
      style.indent = std::string(static_cast<std::size_t>(width), ' ');
    }
  }
  if (args[2] != nullptr && !args[2]->is_none()) {
    const std::span<const Value> separators = iterate(call.runtime, *args[2]);
    if (separators.size() != 2) fail("tojson takes two separators, not {}", separators.size());
    style.item_separator = require_text(separators[0]).bytes();
    style.key_separator = require_text(separators[1]).bytes();
  }
  return call.runtime.make(to_json(call.runtime, call.self, style));
}

Value length_filter(const Invocation& call) {
  bind(call, {});
  return {static_cast<std::int64_t>(length_of(call.runtime, call.self)), false};
}

Value default_filter(const Invocation& call) {
  const auto args = bind(call, {"default_value", "boolean"});
  if (!call.self.is_undefined() && !(is_set(args[1]) && !truth(call.self))) return call.self;
  return args[0] != nullptr ? *args[0] : call.runtime.make("", true);
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
  if (value.is_undefined()) fail_undefined(value);
  if (const Text* text = value.text()) return parse_float(strip(runtime, *text, nullptr).bytes());
  return as_number(value);
}

Value int_filter(const Invocation& call) {
  const auto args = bind(call, {"default", "base"});
  const Value otherwise = args[0] != nullptr ? *args[0] : Value{std::int64_t{0}};
  const std::int64_t base = args[1] == nullptr ? 10 : require_integer(*args[1]);
  if (base < 2 || base > 36) fail("int takes a base from 2 to 36, not {}", base);
  if (const auto integer = as_integer(call.self)) return {*integer, call.self.trusted};
  const Text* text = call.self.text();
  const bool trusted = text != nullptr ? text->trusted() : call.self.trusted;
  if (text != nullptr) {
    const Text stripped = strip(call.runtime, *text, nullptr);
    if (const auto integer = parse_integer(stripped.bytes(), static_cast<int>(base)))
      return {*integer, trusted};
  }
  const std::optional<double> number = to_float(call.runtime, call.self);
  if (!number || !std::isfinite(*number)) return otherwise;
  if (std::abs(*number) >= 0x1p63) fail("an integer leaves the range of 64 bits");
  return {static_cast<std::int64_t>(*number), trusted};
}

Value float_filter(const Invocation& call) {
  const auto args = bind(call, {"default"});
  if (const std::optional<double> number = to_float(call.runtime, call.self)) {
    return {*number, call.self.text() != nullptr ? call.self.text()->trusted() : call.self.trusted};
  }
  return args[0] != nullptr ? *args[0] : Value{0.0};
}

Value abs_filter(const Invocation& call) {
  bind(call, {});
  const std::optional<double> number = as_number(call.self);
  if (!number) fail("bad operand type for abs(): '{}'", type_name(call.self));
  return apply_unary(call.runtime, *number < 0 ? UnaryOp::kNegative : UnaryOp::kPositive, call.self);
}

Value format_filter(const Invocation& call) {
  if (!call.arguments.named.empty()) fail("format takes no named arguments");
  const Value values = call.runtime.make(call.arguments.positional, ListKind::kTuple);
  return call.runtime.make(percent_format(call.runtime, to_text(call.runtime, call.self), values));
}

constexpr std::array kScalarFilters = {
    Builtin{"abs", abs_filter},
    Builtin{"capitalize", transform_filter<capitalize>},
    Builtin{"count", length_filter},
    Builtin{"d", default_filter},
    Builtin{"default", default_filter},
    Builtin{"float", float_filter},
    Builtin{"format", format_filter},
    Builtin{"indent", indent_filter},
    Builtin{"int", int_filter},
    Builtin{"length", length_filter},
    Builtin{"lower", transform_filter<lower>},
    Builtin{"replace", replace_filter},
    Builtin{"safe", transform_filter<identity>},
    Builtin{"string", transform_filter<identity>},
    Builtin{"title", transform_filter<title>},
    Builtin{"tojson", tojson_filter},
    Builtin{"trim", trim_filter},
    Builtin{"upper", transform_filter<upper>},
};

}  // namespace

Native find_filter(std::string_view name) {
  const Native native = find_builtin(kScalarFilters, name);
  return native != nullptr ? native : find_sequence_filter(name);
}

}  // namespace quire::jinja
