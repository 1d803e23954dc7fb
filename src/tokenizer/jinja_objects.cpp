// Attributes, items and the methods of lists, dicts and loops; those of strings are in
// jinja_text_methods.cpp.
#include <algorithm>

#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_unicode.h"

namespace quire::jinja {
namespace {

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
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(call.runtime, items[i], *call[0])) return count_value(i);
  }
  fail("the value is not in the list");
}

Value list_count(const Invocation& call) {
  const std::vector<Value>& items = call.self.list()->items;
  const auto same = [&](const Value& item) { return equal(call.runtime, item, *call[0]); };
  return count_value(static_cast<std::size_t>(std::count_if(items.begin(), items.end(), same)));
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
constexpr Builtin kListMethods[] = {{"copy", copy_self}, {"append"},  {"clear"},
                                    {"extend"},          {"insert"},  {"pop"},
                                    {"remove"},          {"reverse"}, {"sort"}};
constexpr Builtin kSequenceMethods[] = {{"index", list_index, {"value"}, 1},
                                        {"count", list_count, {"value"}, 1}};
constexpr Builtin kLoopMethods[] = {{"cycle", loop_cycle, {kAnything}},
                                    {"changed", loop_changed, {kAnything}}};

const Builtin* find_method(const Value& object, std::string_view name) {
  if (object.text() != nullptr) return find_builtin(text_methods(), name);
  if (object.dict() != nullptr) return find_builtin(kDictMethods, name);
  if (object.pointer<Loop>() != nullptr) return find_builtin(kLoopMethods, name);
  const List* list = object.sequence();
  const Builtin* method = list != nullptr ? find_builtin(kSequenceMethods, name) : nullptr;
  const bool may_be_own = method == nullptr && list != nullptr && list->kind == ListKind::kList;
  return may_be_own ? find_builtin(kListMethods, name) : method;
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
  if (const Builtin* method = find_method(object, name)) {
    if (method->run != nullptr) return runtime.make(Callable{.builtin = method, .self = object});
    return runtime.undefined(
        format_text("'{}' would change a {}, which templates may not", name, type_name(object)));
  }
  if (const Namespace* space = object.pointer<Namespace>()) {
    if (const Value* value = find_key(runtime, space->attributes, name)) return *value;
  }
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
  const std::size_t begin = byte_offset(text->bytes(), at);
  std::size_t end = begin;
  next_code_point(text->bytes(), end);
  return runtime.make(text->slice(begin, end));
}

Value undefined_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  return runtime.undefined(format_text("'{} object' has no attribute '{}'", type_name(object), name));
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& object, std::string_view name) {
  require_defined(object);
  if (const std::optional<Value> own = own_attribute(runtime, object, name)) return *own;
  if (const Dict* dict = object.dict()) {
    if (const Value* value = find_key(runtime, dict->items, name)) return *value;
  }
  return undefined_attribute(runtime, object, name);
}

Value get_item(Runtime& runtime, const Value& object, const Value& key) {
  runtime.charge();
  require_defined(object);
  if (const std::optional<Value> item = find_item(runtime, object, key)) return *item;
  std::string missing = "such element";
  if (const Text* name = key.text()) {
    if (const std::optional<Value> own = own_attribute(runtime, object, name->bytes())) return *own;
    return undefined_attribute(runtime, object, name->bytes());
  }
  if (const std::optional<std::int64_t> index = as_integer(key)) missing = format_text("element {}", *index);
  return runtime.undefined(format_text("{} object has no {}", type_name(object), missing));
}

std::vector<Value> pairs_of(Runtime& runtime, const Items& items) {
  std::vector<Value> pairs;
  for (const auto& [key, value] : items) {
    pairs.push_back(runtime.make(std::vector<Value>{key, value}, ListKind::kTuple));
  }
  return pairs;
}

const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return &builtin;
  }
  return nullptr;
}

Value invoke(Runtime& runtime, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  Invocation call{runtime, builtin.name, self, arguments};
  const auto& names = builtin.parameters;
  if (names[0] == kAnything) return builtin.run(call);
  const auto names_end = std::find(names.begin(), names.end(), "");
  const auto count = static_cast<std::size_t>(names_end - names.begin());
  const auto& [positional, named] = arguments;
  if (positional.size() > count) {
    fail("'{}' takes at most {} arguments, {} were given", builtin.name, count, positional.size());
  }
  for (std::size_t i = 0; i < positional.size(); ++i) call.bound[i] = &positional[i];
  for (const auto& [key, value] : named) {
    const std::string_view name = key.text()->bytes();
    const auto slot = std::find(names.begin(), names_end, name);
    if (slot == names_end) fail("'{}' has no argument named '{}'", builtin.name, name);
    const Value*& place = call.bound[static_cast<std::size_t>(slot - names.begin())];
    if (place != nullptr) fail("'{}' is given its argument '{}' twice", builtin.name, name);
    place = &value;
  }
  for (std::size_t i = 0; i < builtin.required; ++i) {
    if (call.bound[i] == nullptr) fail("'{}' needs its argument '{}'", builtin.name, names[i]);
  }
  return builtin.run(call);
}

}  // namespace quire::jinja
