// The filters that take lists apart or put them together.
#include <algorithm>

#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

// attribute='a.b.0' of an item: names and numbers between dots. The item itself without an attribute.
Value look_up(Runtime& runtime, Value item, const Value* attribute) {
  if (attribute == nullptr || attribute->is_none()) return item;
  if (attribute->text() == nullptr) return get_item(runtime, item, *attribute);
  std::string_view path = attribute->text()->bytes();
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
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
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

Value first_filter(const Invocation& call) {
  List* list = call.self.list();
  if (list != nullptr && list->kind == ListKind::kGenerator && list->consumed < list->items.size()) {
    return list->items[list->consumed++];
  }
  const std::span<const Value> items = iterate(call.runtime, call.self);
  return items.empty() ? call.runtime.undefined("there is no first item, the sequence is empty")
                       : items.front();
}

Value last_filter(const Invocation& call) {
  const List* list = call.self.list();
  if (list != nullptr && list->kind == ListKind::kGenerator) fail("'generator' object is not reversible");
  const std::span<const Value> items = iterate(call.runtime, call.self);
  return items.empty() ? call.runtime.undefined("there is no last item, the sequence is empty")
                       : items.back();
}

Value list_filter(const Invocation& call) { return call.runtime.make(items_of(call)); }

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
  Items keyed;
  for (const Value& item : items_of(call)) {
    keyed.emplace_back(sort_key(call.runtime, look_up(call.runtime, item, call[2]), call.flag(1)), item);
  }
  return sorted(call.runtime, std::move(keyed), call.flag(0));
}

Value unique_filter(const Invocation& call) {
  std::vector<Value> seen, items;
  for (const Value& item : items_of(call)) {
    const Value key = sort_key(call.runtime, look_up(call.runtime, item, call[1]), call.flag(0));
    require_hashable(call.runtime, key);
    const auto same = [&](const Value& other) { return equal(call.runtime, other, key); };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(key);
    items.push_back(item);
  }
  return generator(call.runtime, std::move(items));
}

Value reverse_filter(const Invocation& call) {
  Runtime& runtime = call.runtime;
  std::vector<Value> items = items_of(call);
  std::reverse(items.begin(), items.end());
  return call.self.text() != nullptr ? join(runtime, Text(), items) : generator(runtime, std::move(items));
}

Value batch_filter(const Invocation& call) {
  const std::int64_t size = call.integer(0, 0);
  std::vector<Value> batches, batch;
  for (const Value& item : items_of(call)) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      batches.push_back(call.runtime.make(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (call.given(1) != nullptr && static_cast<std::int64_t>(batch.size()) < size) {
      call.runtime.charge_product(static_cast<std::size_t>(size), sizeof(Value));
      batch.resize(static_cast<std::size_t>(size), *call[1]);
    }
    batches.push_back(call.runtime.make(std::move(batch)));
  }
  return generator(call.runtime, std::move(batches));
}

// The filter or test that is named by the argument at `place`, to be applied with the arguments behind it.
class Applied {
 public:
  Applied(const Invocation& call, std::size_t place, const char* kind,
          const Builtin* (*find)(std::string_view name))
      : runtime_(call.runtime), rest_(call.arguments) {
    runtime_.charge_product(rest_.positional.size(), sizeof(Value));
    const std::string_view name = require_text(rest_.positional[place]).bytes();
    builtin_ = find(name);
    if (builtin_ == nullptr) fail("no {} is named '{}'", kind, name);
    rest_.positional.erase(rest_.positional.begin(),
                           rest_.positional.begin() + static_cast<std::ptrdiff_t>(place + 1));
  }
  Value operator()(const Value& item) const { return invoke(runtime_, *builtin_, item, rest_); }

 private:
  Runtime& runtime_;
  Arguments rest_;
  const Builtin* builtin_;
};

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
  if (call.self.is_undefined()) return generator(call.runtime, {});
  if (call.arguments.positional.empty()) return invoke(call.runtime, kByAttribute, call.self, call.arguments);
  std::vector<Value> items = items_of(call);
  const Applied filter(call, 0, "filter", find_filter);
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
  if (call.self.is_undefined()) return generator(call.runtime, {});
  const std::vector<Value>& positional = call.arguments.positional;
  constexpr std::size_t kTestAt = by_attribute ? 1 : 0;
  if (positional.size() < kTestAt) fail("the attribute to select by is missing");
  std::optional<Applied> test;
  if (positional.size() > kTestAt) test.emplace(call, kTestAt, "test", find_test);
  std::vector<Value> chosen;
  for (const Value& item : items_of(call)) {
    call.runtime.charge();
    const Value tested = by_attribute ? look_up(call.runtime, item, &positional[0]) : item;
    if (truth(test ? (*test)(tested) : tested) == wanted) chosen.push_back(item);
  }
  return generator(call.runtime, std::move(chosen));
}

constexpr Builtin kSequenceFilters[] = {
    {"batch", batch_filter, {"linecount", "fill_with"}, 1},
    {"dictsort", dictsort_filter, {"case_sensitive", "by", "reverse"}},
    {"first", first_filter},
    {"items", items_filter},
    {"join", join_filter, {"d", "attribute"}},
    {"last", last_filter},
    {"list", list_filter},
    {"map", map_filter, {kAnything}},
    {"reject", choose<false, false>, {kAnything}},
    {"rejectattr", choose<true, false>, {kAnything}},
    {"reverse", reverse_filter},
    {"select", choose<false, true>, {kAnything}},
    {"selectattr", choose<true, true>, {kAnything}},
    {"sort", sort_filter, {"reverse", "case_sensitive", "attribute"}},
    {"unique", unique_filter, {"case_sensitive", "attribute"}},
};

}  // namespace

std::span<const Builtin> sequence_filters() { return kSequenceFilters; }

}  // namespace quire::jinja
