#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>

#include "base/parse_number.h"
#include "tokenizer/jinja_builtins.h"

namespace quire::jinja {
namespace {

// ---- Of single values

bool separates_words(char32_t c) {
  return is_space(c) || std::u32string_view(U"-({[<").find(c) != std::u32string_view::npos;
}

template <bool is_safe>
Value string_filter(const Invocation& call) {
  return {&text_of(call.runtime, call.self), true, is_safe || call.self.is_safe};
}

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
  const std::vector<Value> lines = split_lines(runtime, text);
  Text result;
  if (call.flag(1)) result.append(indention);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text();
    runtime.charge(indention.memory() + line.memory());
    if (i > 0) result.append("\n", true);
    if (i > 0 && (call.flag(2) || !line.empty())) result.append(indention);
    result.append(line);
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
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.remove_prefix(2);
  if (text.empty() || text.front() == '_' || text.back() == '_' ||
      text.find("__") != std::string_view::npos || text.front() == '-') {
    return std::nullopt;
  }
  std::string digits = negative ? "-" : "";
  digits += text;
  std::erase(digits, '_');
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (end != digits.data() + digits.size()) return std::nullopt;
  if (error == std::errc::result_out_of_range) fail_range();
  return error == std::errc{} ? std::optional(number) : std::nullopt;
}

std::optional<double> parse_float(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  if (text.find('(') != std::string_view::npos) return std::nullopt;  // what C++ reads of a NaN
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (end != text.data() + text.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range) {  // too large, or too small
    const bool small = text.find("e-") != std::string_view::npos || text.find("E-") != std::string_view::npos;
    number = std::copysign(small ? 0 : std::numeric_limits<double>::infinity(), text.front() == '-' ? -1 : 1);
  }
  return number;
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

// ---- Of lists

// attribute='a.b.0' of an item: names and numbers between dots. The item itself without an attribute.
Value look_up(Runtime& runtime, Value item, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) return item;
  if (attribute->text() == nullptr) return get_item(runtime, item, *attribute);
  std::string_view path = attribute->text()->bytes();
  if (path.find(',') != std::string_view::npos) fail("several attributes at once are not supported");
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const auto number = part.size() < 10 ? parse_number<std::uint32_t>(part) : std::nullopt;
    item = get_item(runtime, item, number ? Value{std::int64_t{*number}} : runtime.make(part, true));
    if (dot == std::string_view::npos) return item;
    path.remove_prefix(dot + 1);
  }
}

// What sort, unique and dictsort compare: strings without their case, unless told otherwise.
Value sort_key(Runtime& runtime, const Value& value, bool case_sensitive) {
  return case_sensitive || value.text() == nullptr ? value : map_code_points(runtime, value, append_lower);
}

std::vector<Value> items_of(const Invocation& call) {
  const std::span<const Value> items = iterate(call.runtime, call.self);
  call.runtime.charge_product(items.size(), sizeof(Value));
  return {items.begin(), items.end()};
}

Value generator(Runtime& runtime, std::vector<Value> items) {
  return runtime.make(std::move(items), ListKind::kGenerator);
}

// A list of the items by their keys. Stable, and stable in reverse too, as Python's.
Value sorted(Runtime& runtime, Items keyed, bool reverse) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return reverse ? less(runtime, b.first, a.first) : less(runtime, a.first, b.first);
  });
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return runtime.make(std::move(items));
}

Value join_filter(const Invocation& call) {
  std::vector<Value> items = items_of(call);
  for (Value& item : items) item = look_up(call.runtime, item, call[1]);
  return join(call.runtime, call[0] == nullptr ? Text() : text_of(call.runtime, *call[0]), items);
}

template <bool first>
Value end_filter(const Invocation& call) {
  List* list = call.self.list();
  const bool is_generator = list != nullptr && list->kind == ListKind::kGenerator;
  if (is_generator && !first) fail("'generator' object is not reversible");
  const std::size_t consumed = is_generator ? list->consumed : 0;
  const std::span<const Value> items = iterate(call.runtime, call.self);
  if (items.empty()) {
    return call.runtime.undefined(
        format_text("there is no {} item, the sequence is empty", first ? "first" : "last"));
  }
  if (is_generator) list->consumed = consumed + 1;
  return first ? items.front() : items.back();
}

Value items_filter(const Invocation& call) {
  const Dict* dict = call.self.dict();
  if (dict == nullptr && !call.self.is_undefined()) fail("can only get item pairs from a mapping");
  return generator(call.runtime,
                   dict == nullptr ? std::vector<Value>() : pairs_of(call.runtime, dict->items));
}

Value dictsort_filter(const Invocation& call) {
  Runtime& runtime = call.runtime;
  require_defined(call.self);
  const Dict* dict = call.self.dict();
  if (dict == nullptr) fail("dictsort needs a mapping, got {}", type_name(call.self));
  const std::string_view by = call[1] == nullptr ? "key" : call.text(1).bytes();
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value', not '{}'", by);
  Items keyed;
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(sort_key(runtime, by == "key" ? key : value, call.flag(0)),
                       runtime.make(std::vector<Value>{key, value}, ListKind::kTuple));
  }
  return sorted(runtime, std::move(keyed), call.flag(2));
}

Value sort_filter(const Invocation& call) {
  Items keyed;  // by lists of one, as Jinja's: what is equal in them needs no order
  for (const Value& item : items_of(call)) {
    const Value key = sort_key(call.runtime, look_up(call.runtime, item, call[2]), call.flag(1));
    keyed.emplace_back(call.runtime.make(std::vector<Value>{key}), item);
  }
  return sorted(call.runtime, std::move(keyed), call.flag(0));
}

Value unique_filter(const Invocation& call) {
  std::vector<Value> seen, items;
  for (const Value& item : items_of(call)) {
    const Value key = sort_key(call.runtime, look_up(call.runtime, item, call[1]), call.flag(0));
    require_hashable(call.runtime, key);
    const auto same = [&](const Value& other) { return equal(call.runtime, other, key); };
    if (std::ranges::any_of(seen, same)) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return generator(call.runtime, std::move(items));
}

Value reverse_filter(const Invocation& call) {
  Runtime& runtime = call.runtime;
  std::vector<Value> items = items_of(call);
  std::ranges::reverse(items);
  return call.self.text() != nullptr ? join(runtime, Text(), items) : generator(runtime, std::move(items));
}

Value batch_filter(const Invocation& call) {
  const std::int64_t size = call.integer(0, 0);
  std::vector<Value> batches, batch;
  for (const Value& item : items_of(call)) {
    if (static_cast<std::int64_t>(batch.size()) == size)
      batches.push_back(call.runtime.make(std::exchange(batch, {})));
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (call.given(1) != nullptr && static_cast<std::int64_t>(batch.size()) < size) {
      call.runtime.charge_product(static_cast<std::size_t>(size), sizeof(Value));
      batch.resize(size, *call[1]);
    }
    batches.push_back(call.runtime.make(std::move(batch)));
  }
  return generator(call.runtime, std::move(batches));
}

// The filter or test that is named by the argument at `place`, applied with the arguments behind it.
std::function<Value(const Value&)> applied(const Invocation& call, std::size_t place, const char* kind,
                                           const Builtin* (*find)(std::string_view name)) {
  const std::vector<Value>& given = call.arguments.positional;
  call.runtime.charge_product(given.size(), sizeof(Value));
  const std::string_view name = require_text(given[place]).bytes();
  const Builtin* builtin = find(name);
  if (builtin == nullptr) fail("no {} is named '{}'", kind, name);
  const auto behind = given.begin() + static_cast<std::ptrdiff_t>(place + 1);
  return [&runtime = call.runtime, builtin, rest = Arguments{{behind, given.end()}, call.arguments.named}](
             const Value& item) { return invoke(runtime, *builtin, item, rest); };
}

Value map_attribute(const Invocation& call) {
  std::vector<Value> items = items_of(call);
  for (Value& item : items) {
    item = look_up(call.runtime, item, call[0]);
    if (item.is_undefined() && call.given(1) != nullptr) item = *call[1];
  }
  return generator(call.runtime, std::move(items));
}

// map('filter', args...) or map(attribute=..., default=...).
Value map_filter(const Invocation& call) {
  static constexpr Builtin kByAttribute = {"map", map_attribute, {"attribute", "default"}, 1};
  const auto depth = call.runtime.descend();
  if (!truth(call.self)) return generator(call.runtime, {});  // None, too, which is no list
  if (call.arguments.positional.empty()) return invoke(call.runtime, kByAttribute, call.self, call.arguments);
  std::vector<Value> items = items_of(call);
  const auto filter = applied(call, 0, "filter", find_filter);
  for (Value& item : items) {
    call.runtime.charge();
    item = filter(item);
  }
  return generator(call.runtime, std::move(items));
}

// select, reject, selectattr and rejectattr: the items that pass a test, or plain truth without one.
template <bool by_attribute, bool wanted>
Value choose(const Invocation& call) {
  const auto depth = call.runtime.descend();
  if (!truth(call.self)) return generator(call.runtime, {});  // None, too, which is no list
  const std::vector<Value>& positional = call.arguments.positional;
  constexpr std::size_t kTestAt = by_attribute ? 1 : 0;
  if (positional.size() < kTestAt) fail("the attribute to select by is missing");
  std::function<Value(const Value&)> test;  // none: plain truth
  if (positional.size() > kTestAt) test = applied(call, kTestAt, "test", find_test);
  std::vector<Value> chosen;
  for (const Value& item : items_of(call)) {
    call.runtime.charge();
    const Value tested = by_attribute ? look_up(call.runtime, item, &positional[0]) : item;
    if (truth(test ? test(tested) : tested) == wanted) chosen.push_back(item);
  }
  return generator(call.runtime, std::move(chosen));
}

constexpr Builtin kFilters[] = {
    {"abs", abs_filter},
    {"batch", batch_filter, {"linecount", "fill_with"}, 1},
    {"capitalize", capitalized<append_title, never>},
    {"count", length_filter},
    {"d", default_filter, {"default_value", "boolean"}},
    {"default", default_filter, {"default_value", "boolean"}},
    {"dictsort", dictsort_filter, {"case_sensitive", "by", "reverse"}},
    {"first", end_filter<true>},
    {"float", float_filter, {"default"}},
    {"format", format_filter, {kAnything}},
    {"indent", indent_filter, {"width", "first", "blank"}},
    {"int", int_filter, {"default", "base"}},
    {"items", items_filter},
    {"join", join_filter, {"d", "attribute"}},
    {"last", end_filter<false>},
    {"length", length_filter},
    {"list", [](const Invocation& call) { return call.runtime.make(items_of(call)); }},
    {"lower", mapped<append_lower>},
    {"map", map_filter, {kAnything}},
    {"reject", choose<false, false>, {kAnything}},
    {"rejectattr", choose<true, false>, {kAnything}},
    {"replace", replace_filter, {"old", "new", "count"}, 2},
    {"reverse", reverse_filter},
    {"safe", string_filter<true>},
    {"select", choose<false, true>, {kAnything}},
    {"selectattr", choose<true, true>, {kAnything}},
    {"sort", sort_filter, {"reverse", "case_sensitive", "attribute"}},
    {"string", string_filter<false>},
    {"title", capitalized<append_upper, separates_words>},
    {"tojson", tojson_filter, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"trim", strip, {"chars"}},
    {"unique", unique_filter, {"case_sensitive", "attribute"}},
    {"upper", mapped<append_upper>},
};

}  // namespace

const Builtin* find_filter(std::string_view name) { return find_builtin(kFilters, name); }

}  // namespace quire::jinja
