// The tests and the global functions of chat templates.
#include <locale.h>

#include <algorithm>
#include <array>

#include "tokenizer/jinja_builtins.h"

namespace quire::jinja {
namespace {

// ---- Functions

constexpr std::size_t kMaxRange = 100'000;  // that of Jinja's sandbox

Value raise_exception(const Invocation& call) {
  throw RaisedByTemplate(std::string(text_of(call.runtime, *call[0]).bytes()));
}

Value strftime_now(const Invocation& call) {
  static const locale_t kEnglish = newlocale(LC_ALL_MASK, "C", locale_t{});
  const Text& format = call.text(0);
  if (format.empty()) return *call[0];
  std::tm now = call.runtime.now();
  now.tm_isdst = -1;  // %z prints nothing, nor does %Z: the time has no zone, as Python's datetime.now()
  now.tm_zone = "";
  call.runtime.charge(format.size());
  std::array<char, 4096> buffer;
  const std::string terminated(format.bytes());
  // A trailing space tells an empty result from one that does not fit.
  const std::size_t size =
      strftime_l(buffer.data(), buffer.size(), (terminated + " ").c_str(), &now, kEnglish);
  if (size == 0) fail("strftime_now: the formatted time is longer than {} bytes", buffer.size());
  const std::string_view text(buffer.data(), size - 1);
  return call.runtime.make(text, format.trusted());
}

Value range_function(const Invocation& call) {
  if (!call.arguments.named.empty()) fail("range takes no named arguments");
  const std::int64_t start = call[1] == nullptr ? 0 : call.integer(0, 0);
  const std::int64_t stop = call.integer(call[1] == nullptr ? 0 : 1, 0);
  const std::int64_t step = call.integer(2, 1);
  if (step == 0) fail("range step must not be zero");
  const std::vector<Value>& given = call.arguments.positional;
  const bool trusted =
      std::all_of(given.begin(), given.end(), [](const Value& bound) { return bound.trusted; });
  std::vector<Value> numbers;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (numbers.size() >= kMaxRange) fail("a range has more than {} numbers", kMaxRange);
    numbers.push_back({i, trusted});
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return call.runtime.make(std::move(numbers), ListKind::kRange);
}

// dict(mapping or pairs, name=value, ...)
Items collect_items(const Invocation& call) {
  if (call.arguments.positional.size() > 1) fail("takes at most one positional argument");
  Runtime& runtime = call.runtime;
  Items items;
  if (!call.arguments.positional.empty()) {
    const Value& source = call.arguments.positional[0];
    if (const Dict* dict = source.dict()) {
      runtime.charge_product(dict->items.size(), 2 * sizeof(Value));
      items = dict->items;
    } else {
      for (const Value& pair : iterate(runtime, source)) {
        const std::span<const Value> parts = iterate(runtime, pair);
        if (parts.size() != 2) fail("an item of a dict needs a key and a value, not {} parts", parts.size());
        set_key(runtime, items, parts[0], parts[1]);
      }
    }
  }
  for (const auto& [name, value] : call.arguments.named) set_key(runtime, items, name, value);
  return items;
}

Value dict_function(const Invocation& call) { return call.runtime.make(collect_items(call)); }

Value namespace_function(const Invocation& call) {
  Namespace space{collect_items(call)};
  for (const auto& [name, value] : space.attributes) require_text(name);
  return call.runtime.make(std::move(space));
}

// ---- Tests: "x is test"

template <typename... Kinds>
Value is_any(const Invocation& call) {
  return {(call.self.is<Kinds>() || ...)};
}

template <bool wanted>
Value is_flag(const Invocation& call) {
  const bool* flag = call.self.get<bool>();
  return {flag != nullptr && *flag == wanted};
}

Value is_defined(const Invocation& call) { return {!call.self.is_undefined()}; }

Value is_sequence(const Invocation& call) {
  return {call.self.sequence() != nullptr || truth(is_any<const Text*, const Dict*, Undefined>(call))};
}

template <bool (*compare)(Runtime&, const Value&, const Value&)>
Value compares(const Invocation& call) {
  return {compare(call.runtime, call.self, *call[0])};
}

bool same(Runtime& runtime, const Value& a, const Value& b) {
  return a.data.index() == b.data.index() && equal(runtime, a, b);
}

Value has_rest(const Invocation& call, const Value& divisor, std::int64_t rest) {
  return {equal(call.runtime, modulo(call.runtime, call.self, divisor), Value{rest})};
}

template <std::int64_t rest>
Value has_parity(const Invocation& call) {
  return has_rest(call, {std::int64_t{2}}, rest);
}

Value is_divisible(const Invocation& call) { return has_rest(call, {require_integer(*call[0])}, 0); }

constexpr Builtin kTests[] = {
    {"!=", compares<not_equal>, {"other"}, 1},
    {"<", compares<less>, {"other"}, 1},
    {"<=", compares<less_equal>, {"other"}, 1},
    {"==", compares<equal>, {"other"}, 1},
    {">", compares<greater>, {"other"}, 1},
    {">=", compares<greater_equal>, {"other"}, 1},
    {"boolean", is_any<bool>},
    {"callable", is_any<const Callable*, Loop*, Undefined>},
    {"defined", is_defined},
    {"divisibleby", is_divisible, {"num"}, 1},
    {"eq", compares<equal>, {"other"}, 1},
    {"equalto", compares<equal>, {"other"}, 1},
    {"even", has_parity<0>},
    {"false", is_flag<false>},
    {"float", is_any<double>},
    {"ge", compares<greater_equal>, {"other"}, 1},
    {"greaterthan", compares<greater>, {"other"}, 1},
    {"gt", compares<greater>, {"other"}, 1},
    {"in", compares<in>, {"other"}, 1},
    {"integer", is_any<std::int64_t>},
    {"iterable", is_any<List*, const Text*, const Dict*, Undefined, Loop*>},
    {"le", compares<less_equal>, {"other"}, 1},
    {"lessthan", compares<less>, {"other"}, 1},
    {"lower", is_all_cased<is_lower, is_upper>},
    {"lt", compares<less>, {"other"}, 1},
    {"mapping", is_any<const Dict*>},
    {"ne", compares<not_equal>, {"other"}, 1},
    {"none", is_any<None>},
    {"number", is_any<bool, std::int64_t, double>},
    {"odd", has_parity<1>},
    {"sameas", compares<same>, {"other"}, 1},
    {"sequence", is_sequence},
    {"string", is_any<const Text*>},
    {"true", is_flag<true>},
    {"undefined", is_any<Undefined>},
    {"upper", is_all_cased<is_upper, is_lower>},
};

constexpr Builtin kGlobals[] = {
    {"dict", dict_function, {kAnything}},
    {"namespace", namespace_function, {kAnything}},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"range", range_function, {"start", "stop", "step"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

}  // namespace

const Builtin* find_test(std::string_view name) { return find_builtin(kTests, name); }
const Builtin* find_global(std::string_view name) { return find_builtin(kGlobals, name); }

}  // namespace quire::jinja
