// The filters that take lists apart or put them together.
#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

bool flag(const Value* value, bool absent = false) { return value == nullptr ? absent : truth(*value); }

// attribute='a.b.0' of an item: names and numbers between dots.
Value look_up(Runtime& runtime, Value item, const Value& attribute) {
  if (attribute.text() == nullptr) return get_item(runtime, item, attribute);
  std::string_view path = attribute.text()->bytes();
  if (path.find(',') != std::string_view::npos) fail("several attributes at once are not supported");
  while (true) {
    const std::size_t dot = path.find('.');
    const std::string_view part = path.substr(0, dot);
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == part.npos;
    const Value key =
        number ? Value{static_cast<std::int64_t>(std::stoll(std::string(part)))} : runtime.make(part, true);
    item = get_item(runtime, item, key);
    if (dot == std::string_view::npos) return item;
    path.remove_prefix(dot + 1);
  }
}

Value look_up(Runtime& runtime, const Value& item, const Value* attribute) {
  return attribute == nullptr || attribute->is_none() ? item : look_up(runtime, item, *attribute);
}

// What sort, unique and dictsort compare: strings without their case, unless told otherwise.
Value sort_key(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return runtime.make(lower(runtime, *value.text()));
}

std::vector<Value> items_of(const Invocation& call) {
  const std::span<const Value> items = iterate(call.runtime, call.self);
  call.runtime.charge_product(items.size(), sizeof(Value));
  return {items.begin(), items.end()};
}

// A list of the items by their keys. Stable, and stable in reverse too, as Python's.
Value sorted(Runtime& runtime, std::vector<std::pair<Value, Value>> keyed, bool reverse) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reverse ? less(runtime, b.first, a.first) : less(runtime, a.first, b.first);
  });
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) items.push_back(item);
  return runtime.make(std::move(items));
}

Value join_filter(const Invocation& call) {
  const auto args = bind(call, {"d", "attribute"});
  Runtime& runtime = call.runtime;
  std::vector<Value> items = items_of(call);
  for (Value& item : items) item = look_up(runtime, item, args[1]);
  return runtime.make(join(runtime, args[0] == nullptr ? Text() : to_text(runtime, *args[0]), items));
}

Value first_filter(const Invocation& call) {
  bind(call, {});
  List* list = call.self.list();
  if (list != nullptr && list->kind == ListKind::kGenerator && list->consumed < list->items.size()) {
    return list->items[list->consumed++];
  }
  const std::span<const Value> items = iterate(call.runtime, call.self);
  return items.empty() ? call.runtime.undefined("there is no first item, the sequence is empty")
                       : items.front();
}

Value last_filter(const Invocation& call) {
  bind(call, {});
  const List* list = call.self.list();
  if (list != nullptr && list->kind == ListKind::kGenerator) fail("'generator' object is not reversible");
  const std::span<const Value> items = iterate(call.runtime, call.self);
  return items.empty() ? call.runtime.undefined("there is no last item, the sequence is empty")
                       : items.back();
}

Value list_filter(const Invocation& call) {
  bind(call, {});
  return call.runtime.make(items_of(call));
}

Value items_filter(const Invocation& call) {
  bind(call, {});
  if (!call.self.is_undefined() && call.self.dict() == nullptr)
    fail("can only get item pairs from a mapping");
  std::vector<Value> items;
  if (const Dict* dict = call.self.dict()) items = pairs_of(call.runtime, *dict);
  return call.runtime.make(std::move(items), ListKind::kGenerator);
}

Value dictsort_filter(const Invocation& call) {
  const auto args = bind(call, {"case_sensitive", "by", "reverse"});
  Runtime& runtime = call.runtime;
  if (call.self.is_undefined()) fail_undefined(call.self);
  const Dict* dict = call.self.dict();
  if (dict == nullptr) fail("dictsort needs a mapping, got {}", type_name(call.self));
  const std::string_view by = args[1] == nullptr ? "key" : require_text(*args[1]).bytes();
  if (by != "key" && by != "value") fail("dictsort sorts by 'key' or 'value', not '{}'", by);
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, value] : dict->items) {
    keyed.emplace_back(sort_key(runtime, by == "key" ? key : value, flag(args[0])),
                       runtime.make(std::vector<Value>{key, value}, ListKind::kTuple));
  }
  return sorted(runtime, std::move(keyed), flag(args[2]));
}

Value sort_filter(const Invocation& call) {
  const auto args = bind(call, {"reverse", "case_sensitive", "attribute"});
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : items_of(call)) {
    keyed.emplace_back(sort_key(call.runtime, look_up(call.runtime, item, args[2]), flag(args[1])), item);
  }
  return sorted(call.runtime, std::move(keyed), flag(args[0]));
}

Value unique_filter(const Invocation& call) {
  const auto args = bind(call, {"case_sensitive", "attribute"});
  std::vector<Value> seen, items;
  for (const Value& item : items_of(call)) {
    const Value key = sort_key(call.runtime, look_up(call.runtime, item, args[1]), flag(args[0]));
    require_hashable(call.runtime, key);
    const auto same = [&](const Value& other) { return equal(call.runtime, other, key); };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return call.runtime.make(std::move(items), ListKind::kGenerator);
}

Value reverse_filter(const Invocation& call) {
  bind(call, {});
  Runtime& runtime = call.runtime;
  const List* list = call.self.list();
  const bool iterable = list != nullptr || call.self.dict() != nullptr || call.self.is_undefined();
  if (call.self.text() == nullptr && !iterable) fail("'{}' object is not iterable", type_name(call.self));
  std::vector<Value> items = items_of(call);
  std::reverse(items.begin(), items.end());
  if (call.self.text() != nullptr) return runtime.make(join(runtime, Text(), items));
  return runtime.make(std::move(items), ListKind::kGenerator);
}

Value batch_filter(const Invocation& call) {
  const auto args = bind(call, {"linecount", "fill_with"}, 1);
  const std::int64_t size = require_integer(*args[0]);
  std::vector<Value> batches, batch;
  for (const Value& item : items_of(call)) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(call.runtime.make(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (args[1] != nullptr && !args[1]->is_none() && static_cast<std::int64_t>(batch.size()) < size) {
      call.runtime.charge_product(static_cast<std::size_t>(size), sizeof(Value));
      batch.resize(static_cast<std::size_t>(size), *args[1]);
    }
    batches.push_back(call.runtime.make(std::move(batch)));
  }
  return call.runtime.make(std::move(batches), ListKind::kGenerator);
}

Arguments without_first(const Invocation& call, std::size_t count) {
  call.runtime.charge_product(call.arguments.positional.size(), sizeof(Value));
  Arguments rest = call.arguments;
  rest.positional.erase(rest.positional.begin(),
                        rest.positional.begin() + static_cast<std::ptrdiff_t>(count));
  return rest;
}

// map('filter', args...) or map(attribute=..., default=...).
Value map_filter(const Invocation& call) {
  const Runtime::Depth depth(call.runtime);
  Runtime& runtime = call.runtime;
  if (call.self.is_undefined()) return runtime.make(std::vector<Value>(), ListKind::kGenerator);
  std::vector<Value> items = items_of(call);
  if (!call.arguments.positional.empty()) {
    const std::string_view name = require_text(call.arguments.positional[0]).bytes();
    const Native filter = find_filter(name);
    if (filter == nullptr) fail("no filter is named '{}'", name);
    const Arguments rest = without_first(call, 1);
    for (Value& item : items) {
      runtime.charge();
      item = filter({runtime, name, item, rest});
    }
  } else {
    const auto args = bind(call, {"attribute", "default"}, 1);
    for (Value& item : items) {
      item = look_up(runtime, item, args[0]);
      if (item.is_undefined() && args[1] != nullptr && !args[1]->is_none()) item = *args[1];
    }
  }
  return runtime.make(std::move(items), ListKind::kGenerator);
}

// select, reject, selectattr and rejectattr: the items that pass a test, or plain truth without one.
Value choose(const Invocation& call, bool by_attribute, bool wanted) {
  const Runtime::Depth depth(call.runtime);
  Runtime& runtime = call.runtime;
  if (call.self.is_undefined()) return runtime.make(std::vector<Value>(), ListKind::kGenerator);
  const std::vector<Value>& positional = call.arguments.positional;
  const std::size_t test_at = by_attribute ? 1 : 0;
  if (positional.size() < test_at) fail("the attribute to select by is missing");
  Native test = nullptr;
  std::string_view name;
  Arguments rest;
  if (positional.size() > test_at) {
    name = require_text(positional[test_at]).bytes();
    test = find_test(name);
    if (test == nullptr) fail("no test is named '{}'", name);
    rest = without_first(call, test_at + 1);
  }
  std::vector<Value> chosen;
  for (const Value& item : items_of(call)) {
    runtime.charge();
    const Value tested = by_attribute ? look_up(runtime, item, positional[0]) : item;
    if (truth(test == nullptr ? tested : test({runtime, name, tested, rest})) == wanted)
      chosen.push_back(item);
  }
  return runtime.make(std::move(chosen), ListKind::kGenerator);
}

constexpr std::array kSequenceFilters = {
    Builtin{"batch", batch_filter},
    Builtin{"dictsort", dictsort_filter},
    Builtin{"first", first_filter},
    Builtin{"items", items_filter},
    Builtin{"join", join_filter},
    Builtin{"last", last_filter},
    Builtin{"list", list_filter},
    Builtin{"map", map_filter},
    Builtin{"reject", [](const Invocation& call) { return choose(call, false, false); }},
    Builtin{"rejectattr", [](const Invocation& call) { return choose(call, true, false); }},
    Builtin{"reverse", reverse_filter},
    Builtin{"select", [](const Invocation& call) { return choose(call, false, true); }},
    Builtin{"selectattr", [](const Invocation& call) { return choose(call, true, true); }},
    Builtin{"sort", sort_filter},
    Builtin{"unique", unique_filter},
};

}  // namespace

Native find_sequence_filter(std::string_view name) { return find_builtin(kSequenceFilters, name); }

}  // namespace quire::jinja
