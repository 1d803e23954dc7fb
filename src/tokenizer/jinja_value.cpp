#include "tokenizer/jinja_value.h"

#include <algorithm>

#include "base/error.h"

namespace quire::jinja {
namespace {

std::size_t depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

std::size_t checked_depth(std::size_t deepest_item) {
  if (deepest_item >= Runtime::kMaxValueDepth)
    fail("lists and dicts are nested deeper than {}", Runtime::kMaxValueDepth);
  return deepest_item + 1;
}

bool equal_lists(Runtime& runtime, const List& a, const List& b) {
  if (&a == &b) return true;
  return a.kind == b.kind && a.kind <= ListKind::kRange &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(),
                    [&](const Value& x, const Value& y) { return equal(runtime, x, y); });
}

bool equal_dicts(Runtime& runtime, const Dict& a, const Dict& b) {
  return a.items.size() == b.items.size() && std::ranges::all_of(a.items, [&](const auto& item) {
           const Value* other = find_key(runtime, b.items, item.first);
           return other != nullptr && equal(runtime, item.second, *other);
         });
}

}  // namespace

void Runtime::charge(std::size_t bytes) {
  constexpr std::size_t kStepsBetweenLooks = 4096;
  const std::size_t looks = steps_ / kStepsBetweenLooks;
  steps_ += 1 + bytes / kBytesPerStep;
  if (steps_ > limits_.max_steps) fail("the template takes more than {} steps", limits_.max_steps);
  if (steps_ / kStepsBetweenLooks != looks && options_.is_cancelled && options_.is_cancelled())
    fail("rendering was cancelled");
}

void Runtime::charge_product(std::size_t count, std::size_t bytes) {
  std::size_t product = 0;
  if (__builtin_mul_overflow(count, bytes, &product)) product = limits_.max_steps * kBytesPerStep;
  charge(product);
}

Value Runtime::make(Text text) {
  const std::size_t bytes = text.memory();
  return {keep(std::move(text), bytes)};
}

Value Runtime::make(std::vector<Value> items, ListKind kind) {
  const std::size_t bytes = items.size() * sizeof(Value);
  std::size_t deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
  return {keep(List{std::move(items), kind, checked_depth(deepest)}, bytes)};
}

Value Runtime::make(Items items) {
  const std::size_t bytes = items.size() * sizeof(items[0]);
  std::size_t deepest = 0;
  for (const auto& [key, value] : items) deepest = std::max({deepest, depth_of(key), depth_of(value)});
  return {keep(Dict{std::move(items), checked_depth(deepest)}, bytes)};
}

Restore<std::size_t> Runtime::descend() {
  if (depth_ >= limits_.max_depth)
    fail("expressions, macro calls and blocks are nested deeper than {}", limits_.max_depth);
  return Restore(depth_, depth_ + 1);
}

const List* Value::list_up_to(ListKind last) const {
  const List* held = list();
  return held != nullptr && held->kind <= last ? held : nullptr;
}

std::string type_name(const Value& value) {
  static constexpr const char* kNames[] = {"NoneType",  "Undefined", "bool",       "int",
                                           "float",     "str",       "list",       "dict",
                                           "Namespace", "function",  "LoopContext"};
  if (const List* list = value.list()) {
    static constexpr const char* kListNames[] = {"list",      "tuple",       "range",     "generator",
                                                 "dict_keys", "dict_values", "dict_items"};
    return kListNames[static_cast<std::size_t>(list->kind)];
  }
  return kNames[value.data.index()];
}

bool truth(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (const auto number = as_number(value)) return *number != 0;
  if (const Text* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return list->kind == ListKind::kGenerator || !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

std::span<const Value> iterate(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return {};
  if (List* list = value.list()) {
    const std::span<const Value> items = list->items;
    if (list->kind != ListKind::kGenerator) return items;
    return items.subspan(std::exchange(list->consumed, items.size()));
  }
  std::vector<Value> items;
  if (const Text* text = value.text()) {
    for (const auto& [begin, end, c] : Characters(text->bytes()))
      items.push_back(runtime.make(text->slice(begin, end)));
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, unused] : dict->items) items.push_back(key);
  } else {
    fail("'{}' object is not iterable", type_name(value));
  }
  return runtime.make(std::move(items)).list()->items;
}

std::size_t length_of(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) {
    runtime.charge(text->size());
    return count_code_points(text->bytes());
  }
  if (const Dict* dict = value.dict()) return dict->items.size();
  if (const Loop* loop = value.pointer<Loop>()) return loop->items.size();
  const List* list = value.list();
  if (list == nullptr || list->kind == ListKind::kGenerator)
    fail("object of type '{}' has no len()", type_name(value));
  return list->items.size();
}

bool equal(Runtime& runtime, const Value& a, const Value& b) {
  runtime.charge();
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x == *y;
  if (const auto x = as_number(a), y = as_number(b); x && y) return *x == *y;
  if (a.data.index() != b.data.index()) return false;
  if (const Text* x = a.text()) {
    const Text* y = b.text();
    if (x->size() != y->size()) return false;
    runtime.charge(x->size());
    return x->bytes() == y->bytes();
  }
  if (const List* x = a.list()) return equal_lists(runtime, *x, *b.list());
  if (const Dict* x = a.dict()) return equal_dicts(runtime, *x, *b.dict());
  return a.data == b.data;
}

bool less(Runtime& runtime, const Value& a, const Value& b) {
  runtime.charge();
  if (const auto x = as_integer(a), y = as_integer(b); x && y) return *x < *y;
  if (const auto x = as_number(a), y = as_number(b); x && y) return *x < *y;
  if (const Text* x = a.text(), *y = b.text(); x != nullptr && y != nullptr) {
    runtime.charge(std::min(x->size(), y->size()));
    return x->bytes() < y->bytes();  // bytes of UTF-8 sort as code points do
  }
  const List *x = a.list_or_tuple(), *y = b.list_or_tuple();
  if (x == nullptr || y == nullptr || x->kind != y->kind) {
    require_defined(a);
    require_defined(b);
    fail("'{}' and '{}' cannot be ordered", type_name(a), type_name(b));
  }
  for (std::size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i)
    if (!equal(runtime, x->items[i], y->items[i])) return less(runtime, x->items[i], y->items[i]);
  return x->items.size() < y->items.size();
}

bool in(Runtime& runtime, const Value& x, const Value& container) {
  if (const Text* text = container.text()) {
    const Text* part = x.text();
    if (part == nullptr) fail("'in <string>' requires string as left operand, not {}", type_name(x));
    runtime.charge_search(*text, *part);
    return find_first(text->bytes(), part->bytes()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    require_hashable(runtime, x);
    return find_key(runtime, dict->items, x) != nullptr;
  }
  if (container.is_undefined()) return false;
  List* list = container.list();
  if (list == nullptr) fail("argument of type '{}' is not iterable", type_name(container));
  for (std::size_t i = list->consumed; i < list->items.size(); ++i) {
    if (list->kind == ListKind::kGenerator) list->consumed = i + 1;
    if (equal(runtime, list->items[i], x)) return true;
  }
  return false;
}

bool is_hashable(Runtime& runtime, const Value& key) {
  runtime.charge();
  const List* list = key.list();
  if (list == nullptr || list->kind != ListKind::kTuple)
    return key.dict() == nullptr && (list == nullptr || list->kind != ListKind::kList);
  return std::ranges::all_of(list->items, [&](const Value& item) { return is_hashable(runtime, item); });
}

void require_hashable(Runtime& runtime, const Value& key) {
  if (!is_hashable(runtime, key)) fail("unhashable type: '{}'", type_name(key));
}

const Value* find_key(Runtime& runtime, const Items& items, const Value& key) {
  if (const Text* text = key.text()) return find_key(runtime, items, text->bytes());
  for (const auto& [candidate, value] : items)
    if (equal(runtime, candidate, key)) return &value;
  return nullptr;
}

const Value* find_key(Runtime& runtime, const Items& items, std::string_view key) {
  runtime.charge(items.size() * (8 + key.size() / 4));
  for (const auto& [candidate, value] : items) {
    const Text* text = candidate.text();
    if (text != nullptr && text->bytes() == key) return &value;
  }
  return nullptr;
}

void set_key(Runtime& runtime, Items& items, const Value& key, const Value& value) {
  require_hashable(runtime, key);
  const Value* known = find_key(runtime, items, key);
  if (known == nullptr) {
    items.emplace_back(key, value);
  } else {
    const_cast<Value&>(*known) = value;  // one of `items`, which are not const here
  }
}

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const auto* number = value.get<std::int64_t>()) return *number;
  if (const bool* flag = value.get<bool>()) return *flag ? 1 : 0;
  return std::nullopt;
}

std::optional<double> as_number(const Value& value) {
  if (const double* number = value.get<double>()) return *number;
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

void require_defined(const Value& value) {
  if (const auto* undefined = value.get<Undefined>()) fail("{}", undefined->message->bytes());
}

std::int64_t require_integer(const Value& value) {
  require_defined(value);
  const std::optional<std::int64_t> integer = as_integer(value);
  if (!integer) fail("'{}' object cannot be interpreted as an integer", type_name(value));
  return *integer;
}

const Text& require_text(const Value& value) {
  require_defined(value);
  if (value.text() == nullptr) fail("expected str, got {}", type_name(value));
  return *value.text();
}

}  // namespace quire::jinja
