// What templates name beside filters: global functions, tests, attributes, and methods but those of strings.
#include <locale.h>

#include <algorithm>

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
  if (terminated.find('\0') != terminated.npos) fail("strftime_now: the format holds a NUL");
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
  const bool trusted = std::ranges::all_of(given, [](const Value& bound) { return bound.trusted; });
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
    {"defined", [](const Invocation& call) { return Value{!call.self.is_undefined()}; }},
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
    {"lower", has_only<is_lower, is_upper>},
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
    {"upper", has_only<is_upper, is_lower>},
};

constexpr Builtin kGlobals[] = {
    {"dict", [](const Invocation& call) { return call.runtime.make(collect_items(call)); }, {kAnything}},
    {"namespace", namespace_function, {kAnything}},
    {"raise_exception", raise_exception, {"message"}, 1},
    {"range", range_function, {"start", "stop", "step"}, 1},
    {"strftime_now", strftime_now, {"format"}, 1},
};

// ---- Methods and attributes

Value dict_items(const Invocation& call) {
  return call.runtime.make(pairs_of(call.runtime, call.self.dict()->items), ListKind::kItems);
}

template <Value Items::value_type::*part, ListKind kind>
Value dict_parts(const Invocation& call) {
  std::vector<Value> parts;
  for (const auto& item : call.self.dict()->items) parts.push_back(item.*part);
  return call.runtime.make(std::move(parts), kind);
}

Value dict_get(const Invocation& call) {
  require_hashable(call.runtime, *call[0]);
  const Value* found = find_key(call.runtime, call.self.dict()->items, *call[0]);
  return found != nullptr ? *found : call[1] != nullptr ? *call[1] : Value{None{}};
}

Value copy_self(const Invocation& call) { return call.self; }  // values never change

Value list_index(const Invocation& call) {
  const std::vector<Value>& items = call.self.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (equal(call.runtime, items[i], *call[0])) return count_value(i);
  fail("the value is not in the list");
}

Value list_count(const Invocation& call) {
  const std::vector<Value>& items = call.self.list()->items;
  const auto same = [&](const Value& item) { return equal(call.runtime, item, *call[0]); };
  return count_value(static_cast<std::size_t>(std::ranges::count_if(items, same)));
}

Value loop_cycle(const Invocation& call) {
  const std::vector<Value>& values = call.arguments.positional;
  if (values.empty()) fail("loop.cycle needs values to cycle through");
  return values[call.self.pointer<Loop>()->index % values.size()];
}

Value loop_changed(const Invocation& call) {
  Loop& loop = *call.self.pointer<Loop>();
  const Value now = call.runtime.make(call.arguments.positional, ListKind::kTuple);
  const bool same = loop.last_changed != nullptr && equal(call.runtime, Value{loop.last_changed}, now);
  if (!same) loop.last_changed = now.list();
  return {!same};
}

// Those without a function change a list or dict in Python; the sandbox of chat templates refuses them.
constexpr Builtin kDictMethods[] = {{"items", dict_items},
                                    {"keys", dict_parts<&Items::value_type::first, ListKind::kKeys>},
                                    {"values", dict_parts<&Items::value_type::second, ListKind::kValues>},
                                    {"get", dict_get, {"key", "default"}, 1},
                                    {"copy", copy_self},
                                    {"clear"},
                                    {"pop"},
                                    {"popitem"},
                                    {"setdefault"},
                                    {"update"}};
constexpr Builtin kSequenceMethods[] = {{"index", list_index, {"value"}, 1},
                                        {"count", list_count, {"value"}, 1}};
constexpr Builtin kListMethods[] = {{"copy", copy_self}, {"append"},  {"clear"},
                                    {"extend"},          {"insert"},  {"pop"},
                                    {"remove"},          {"reverse"}, {"sort"}};
constexpr Builtin kLoopMethods[] = {{"cycle", loop_cycle, {kAnything}},
                                    {"changed", loop_changed, {kAnything}}};

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return find_builtin(text_methods(), name);
  if (object.dict() != nullptr) return find_builtin(kDictMethods, name);
  if (object.pointer<Loop>() != nullptr) return find_builtin(kLoopMethods, name);
  const List* list = object.sequence();
  if (list == nullptr) return nullptr;
  const Builtin* method = find_builtin(kSequenceMethods, name);
  return method == nullptr && list->kind == ListKind::kList ? find_builtin(kListMethods, name) : method;
}

std::optional<Value> loop_attribute(Runtime& runtime, const Loop& loop, std::string_view name) {
  const auto integer = [](std::size_t value) { return Value{static_cast<std::int64_t>(value)}; };
  const std::size_t length = loop.items.size();
  if (name == "index") return integer(loop.index + 1);
  if (name == "index0") return integer(loop.index);
  if (name == "revindex") return integer(length - loop.index);
  if (name == "revindex0") return integer(length - loop.index - 1);
  if (name == "first") return Value{loop.index == 0};
  if (name == "last") return Value{loop.index + 1 == length};
  if (name == "length") return integer(length);
  if (name == "depth") return integer(1);  // counts recursive loops, which are not supported
  if (name == "depth0") return integer(0);
  if (name == "previtem")
    return loop.index > 0 ? loop.items[loop.index - 1] : runtime.undefined("there is no previous item");
  if (name == "nextitem")
    return loop.index + 1 < length ? loop.items[loop.index + 1] : runtime.undefined("there is no next item");
  return std::nullopt;
}

// What Python's getattr would find.
std::optional<Value> own_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (const Builtin* method = find_method(object, name)) {
    if (method->run != nullptr) return runtime.make(Callable{.builtin = method, .self = object});
    return runtime.undefined(
        format_text("'{}' would change a {}, which templates may not", name, type_name(object)));
  }
  if (const Namespace* space = object.pointer<Namespace>())
    if (const Value* value = find_key(runtime, space->attributes, name)) return *value;
  if (const Loop* loop = object.pointer<Loop>()) return loop_attribute(runtime, *loop, name);
  return std::nullopt;
}

std::optional<Value> find_item(Runtime& runtime, const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    const Value* found = is_hashable(runtime, key) ? find_key(runtime, dict->items, key) : nullptr;
    return found == nullptr ? std::nullopt : std::optional(*found);
  }
  const std::optional<std::int64_t> index = as_integer(key);
  const Text* text = object.text();
  if (!index || (text == nullptr && object.sequence() == nullptr)) return std::nullopt;
  const auto length = static_cast<std::int64_t>(length_of(runtime, object));
  const std::int64_t place = *index < 0 ? *index + length : *index;
  if (place < 0 || place >= length) return std::nullopt;
  const auto at = static_cast<std::size_t>(place);
  if (text == nullptr) return object.list()->items[at];
  const Character character = character_at(text->bytes(), byte_offset(text->bytes(), at));
  return runtime.make(text->slice(character.begin, character.end));
}

Value undefined_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  return runtime.undefined(format_text("'{} object' has no attribute '{}'", type_name(object), name));
}

}  // namespace

const Builtin* find_test(std::string_view name) { return find_builtin(kTests, name); }
const Builtin* find_global(std::string_view name) { return find_builtin(kGlobals, name); }

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  if (const std::optional<Value> own = own_attribute(runtime, object, name)) return *own;
  if (const Dict* dict = object.dict())
    if (const Value* value = find_key(runtime, dict->items, name)) return *value;
  return undefined_attribute(runtime, object, name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  runtime.charge();
  require_defined(object);
  if (const std::optional<Value> item = find_item(runtime, object, key)) return *item;
  if (const Text* name = key.text()) {
    if (const std::optional<Value> own = own_attribute(runtime, object, name->bytes())) return *own;
    return undefined_attribute(runtime, object, name->bytes());
  }
  const std::optional<std::int64_t> index = as_integer(key);
  const std::string missing = index ? format_text("element {}", *index) : "such element";
  return runtime.undefined(format_text("{} object has no {}", type_name(object), missing));
}

std::vector<Value> pairs_of(Runtime& runtime, const Items& items) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : items)
    pairs.push_back(runtime.make(std::vector<Value>{key, value}, ListKind::kTuple));
  return pairs;
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

Value invoke(Runtime& runtime, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  Invocation call{runtime, self, arguments};
  const auto& names = builtin.parameters;
  if (names[0] == kAnything) return builtin.run(call);
  const auto names_end = std::ranges::find(names, "");
  const auto count = static_cast<std::size_t>(names_end - names.begin());
  const auto& [positional, named] = arguments;
  if (positional.size() > count)
    fail("'{}' takes at most {} arguments, {} were given", builtin.name, count, positional.size());
  for (std::size_t i = 0; i < positional.size(); ++i) call.bound[i] = &positional[i];
  for (const auto& [key, value] : named) {
    const std::string_view name = key.text()->bytes();
    const auto slot = std::find(names.begin(), names_end, name);
    if (slot == names_end) fail("'{}' has no argument named '{}'", builtin.name, name);
    const Value*& place = call.bound[slot - names.begin()];
    if (place != nullptr) fail("'{}' is given its argument '{}' twice", builtin.name, name);
    place = &value;
  }
  for (std::size_t i = 0; i < builtin.required; ++i)
    if (call.bound[i] == nullptr) fail("'{}' needs its argument '{}'", builtin.name, names[i]);
  return builtin.run(call);
}

}  // namespace quire::jinja
