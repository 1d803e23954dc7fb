// Attributes, items and the methods of lists, dicts and loops; those of strings are in
// jinja_text_methods.cpp.
#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_unicode.h"

namespace quire::jinja {
namespace {

Value dict_items(const Invocation& call) {
  bind(call, {});
  return call.runtime.make(pairs_of(call.runtime, *call.self.dict()), ListKind::kItems);
}

template <Value std::pair<Value, Value>::*part, ListKind kind>
Value dict_parts(const Invocation& call) {
  bind(call, {});
  std::vector<Value> parts;
  for (const auto& item : call.self.dict()->items) parts.push_back(item.*part);
  return call.runtime.make(std::move(parts), kind);
}

Value dict_get(const Invocation& call) {
  const auto args = bind(call, {"key", "default"}, 1);
  require_hashable(call.runtime, *args[0]);
  const Value* found = find_key(call.runtime, *call.self.dict(), *args[0]);
  return found != nullptr ? *found : args[1] != nullptr ? *args[1] : Value{None{}};
}

Value copy_self(const Invocation& call) {  // values never change, so a copy is the value
  bind(call, {});
  return call.self;
}

Value list_index(const Invocation& call) {
  const auto args = bind(call, {"value"}, 1);
  const std::vector<Value>& items = call.self.list()->items;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(call.runtime, items[i], *args[0])) return {static_cast<std::int64_t>(i), false};
  }
  fail("the value is not in the list");
}

Value list_count(const Invocation& call) {
  const auto args = bind(call, {"value"}, 1);
  std::int64_t count = 0;
  for (const Value& item : call.self.list()->items) count += equal(call.runtime, item, *args[0]) ? 1 : 0;
  return {count, false};
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

constexpr std::array kDictMethods = {
    Builtin{"items", dict_items},
    Builtin{"keys", dict_parts<&std::pair<Value, Value>::first, ListKind::kKeys>},
    Builtin{"values", dict_parts<&std::pair<Value, Value>::second, ListKind::kValues>},
    Builtin{"get", dict_get}, Builtin{"copy", copy_self}};
constexpr std::array kListMethods = {Builtin{"index", list_index}, Builtin{"count", list_count},
                                     Builtin{"copy", copy_self}};
constexpr std::array kLoopMethods = {Builtin{"cycle", loop_cycle}, Builtin{"changed", loop_changed}};

// What Python's lists and dicts have and the sandbox of chat templates refuses: it changes them.
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                             "pop",    "remove", "reverse", "sort"};

bool changes(const Value& object, std::string_view name) {
  const auto named = [&](const auto& names) {
    return std::count(std::begin(names), std::end(names), name) > 0;
  };
  if (object.dict() != nullptr) return named(kDictChanges);
  return object.list() != nullptr && object.list()->kind == ListKind::kList && named(kListChanges);
}

Native find_method(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return find_text_method(name);
  if (object.dict() != nullptr) return find_builtin(kDictMethods, name);
  if (object.pointer<Loop>() != nullptr) return find_builtin(kLoopMethods, name);
  const List* list = object.list();
  if (list == nullptr || list->kind == ListKind::kGenerator) return nullptr;
  if (list->kind == ListKind::kList) return find_builtin(kListMethods, name);
  const bool counts = list->kind == ListKind::kTuple || list->kind == ListKind::kRange;
  return counts && name != "copy" ? find_builtin(kListMethods, name) : nullptr;
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
  if (name == "nextitem") {
    return loop.index + 1 < length ? loop.items[loop.index + 1] : runtime.undefined("there is no next item");
  }
  return std::nullopt;
}

// What Python's getattr would find.
std::optional<Value> own_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (const Native method = find_method(object, name)) {
    return runtime.make(Callable{.name = name, .native = method, .self = object});
  }
  if (changes(object, name)) {
    return runtime.undefined(
        format_text("'{}' would change a {}, which templates may not", name, type_name(object)));
  }
  if (const Namespace* space = object.pointer<Namespace>()) {
    runtime.charge(space->attributes.size() * (8 + name.size() / 4));
    for (const auto& [key, value] : space->attributes) {
      if (key == name) return value;
    }
  }
  if (const Loop* loop = object.pointer<Loop>()) return loop_attribute(runtime, *loop, name);
  return std::nullopt;
}

// Where the item of that index stands, which counts from the end if it is negative; nothing if there is none.
std::optional<std::size_t> place_of(std::int64_t index, std::size_t size) {
  const auto length = static_cast<std::int64_t>(size);
  const std::int64_t at = index < 0 ? index + length : index;
  return at >= 0 && at < length ? std::optional(static_cast<std::size_t>(at)) : std::nullopt;
}

const Value* find_item(Runtime& runtime, const Value& object, const Value& key) {
  if (const Dict* dict = object.dict()) {
    return is_hashable(runtime, key) ? find_key(runtime, *dict, key) : nullptr;
  }
  const List* list = object.list();
  const std::optional<std::int64_t> index = as_integer(key);
  const bool indexable =
      list != nullptr &&
      (list->kind == ListKind::kList || list->kind == ListKind::kTuple || list->kind == ListKind::kRange);
  if (!indexable || !index) return nullptr;
  const std::optional<std::size_t> at = place_of(*index, list->items.size());
  return at ? &list->items[*at] : nullptr;
}

std::optional<Value> find_character(Runtime& runtime, const Text& text, const Value& key) {
  const std::optional<std::int64_t> index = as_integer(key);
  if (!index) return std::nullopt;
  const std::optional<std::size_t> at = place_of(*index, length_of(runtime, Value{&text}));
  if (!at) return std::nullopt;
  const std::size_t begin = byte_offset(text.bytes(), *at);
  std::size_t end = begin;
  next_code_point(text.bytes(), end);
  return runtime.make(text.slice(begin, end));
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  if (object.is_undefined()) fail_undefined(object);
  if (const std::optional<Value> own = own_attribute(runtime, object, name)) return *own;
  if (const Dict* dict = object.dict()) {
    if (const Value* value = find_key(runtime, *dict, name)) return *value;
  }
  return runtime.undefined(format_text("'{} object' has no attribute '{}'", type_name(object), name));
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  runtime.charge();
  if (object.is_undefined()) fail_undefined(object);
  if (const Text* text = object.text()) {
    if (const std::optional<Value> character = find_character(runtime, *text, key)) return *character;
  } else if (const Value* item = find_item(runtime, object, key)) {
    return *item;
  }
  if (const Text* name = key.text()) {
    if (const std::optional<Value> own = own_attribute(runtime, object, name->bytes())) return *own;
    return runtime.undefined(
        format_text("'{} object' has no attribute '{}'", type_name(object), name->bytes()));
  }
  if (const std::optional<std::int64_t> index = as_integer(key)) {
    return runtime.undefined(format_text("{} object has no element {}", type_name(object), *index));
  }
  return runtime.undefined(format_text("{} object has no such element", type_name(object)));
}

std::vector<Value> pairs_of(Runtime& runtime, const Dict& dict) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : dict.items) {
    pairs.push_back(runtime.make(std::vector<Value>{key, value}, ListKind::kTuple));
  }
  return pairs;
}

std::array<const Value*, kMaxParameters> bind(const Invocation& call,
                                              std::initializer_list<std::string_view> names,
                                              std::size_t required) {
  QUIRE_CHECK(names.size() <= kMaxParameters);
  const auto& [positional, named] = call.arguments;
  std::array<const Value*, kMaxParameters> bound = {};
  if (positional.size() > names.size()) {
    fail("'{}' takes at most {} arguments, {} were given", call.name, names.size(), positional.size());
  }
  for (std::size_t i = 0; i < positional.size(); ++i) bound[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const auto* slot = std::find(names.begin(), names.end(), name);
    if (slot == names.end()) fail("'{}' has no argument named '{}'", call.name, name);
    const Value*& place = bound[static_cast<std::size_t>(slot - names.begin())];
    if (place != nullptr) fail("'{}' is given its argument '{}' twice", call.name, name);
    place = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound[i] == nullptr) fail("'{}' needs its argument '{}'", call.name, *(names.begin() + i));
  }
  return bound;
}

std::int64_t require_integer(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  const std::optional<std::int64_t> integer = as_integer(value);
  if (!integer) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return *integer;
}

const Text& require_text(const Value& value) {
  if (value.is_undefined()) fail_undefined(value);
  const Text* text = value.text();
  if (text == nullptr) fail("expected str, got {}", type_name(value));
  return *text;
}

}  // namespace quire::jinja
