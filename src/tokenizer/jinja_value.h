#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tokenizer/jinja_limits.h"
#include "tokenizer/jinja_text.h"

namespace quire::jinja {

using Limits = ChatTemplateLimits;

struct List;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

// Python's list and its relatives. A generator yields its items once.
enum class ListKind { kList, kTuple, kRange, kGenerator, kKeys, kValues, kItems };

struct None {
  bool operator==(const None&) const = default;
};
struct Undefined {
  const Text* message;  // what to say when it is used as if it were defined

  bool operator==(const Undefined&) const { return true; }  // as Jinja has it
};

// A value is a cheap handle: whatever it points to belongs to the Runtime of the render (or to the template)
// and lives until its end, so nothing is counted and no structure is freed by recursion. Texts, lists and
// dicts never change.
struct Value {
  std::variant<None, Undefined, bool, std::int64_t, double, const Text*, List*, const Dict*, Namespace*,
               const Callable*, Loop*>
      data;
  bool trusted = true;   // of a scalar: whether the text it prints as is; a Text knows for itself
  bool is_safe = false;  // of a text: by the filter of that name, so that + escapes what it joins with it

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(data);
  }
  template <typename T>
  const T* get() const {
    return std::get_if<T>(&data);
  }
  template <typename T>
  T* pointer() const {  // of the kinds held by pointer; null when it is another kind
    const auto* held = std::get_if<T*>(&data);
    return held == nullptr ? nullptr : *held;
  }
  const Text* text() const { return pointer<const Text>(); }
  List* list() const { return pointer<List>(); }
  const List* list_up_to(ListKind last) const;  // null if it is of a later kind, or no list
  const List* list_or_tuple() const { return list_up_to(ListKind::kTuple); }
  const List* sequence() const { return list_up_to(ListKind::kRange); }  // what has indices
  const Dict* dict() const { return pointer<const Dict>(); }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
};

struct List {
  std::vector<Value> items;
  ListKind kind;
  std::size_t depth;         // 1 + that of the deepest item
  std::size_t consumed = 0;  // items a generator has yielded
};

using Items = std::vector<std::pair<Value, Value>>;  // keys distinct

struct Dict {
  Items items;
  std::size_t depth;
};

struct Namespace {
  Items attributes;  // by name
};

struct Loop {
  std::span<const Value> items;
  std::size_t index = 0;
  List* last_changed = nullptr;
};

struct Builtin;
struct Macro;
struct Scope;

struct Callable {
  const Builtin* builtin = nullptr;  // a function or method of ours, or
  Value self = {};
  const Macro* macro = nullptr;  // a macro with the scope it was defined in
  Scope* scope = nullptr;
};

// Gives a variable another value until the end of the block.
template <typename T>
class Restore {
 public:
  Restore(T& variable, std::type_identity_t<T> value)
      : variable_(variable), old_(std::exchange(variable, value)) {}
  ~Restore() { variable_ = old_; }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  T& variable_;
  const T old_;
};

// One render: owner of every value it makes, and keeper of its budgets. What is made is charged and never
// freed before the end, so the step budget bounds memory too.
class Runtime {
 public:
  static constexpr std::size_t kBytesPerStep = 256;
  static constexpr std::size_t kMaxValueDepth = 100;

  Runtime(const Limits& limits, const RenderOptions& options) : limits_(limits), options_(options) {}
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Limits& limits() const { return limits_; }
  const std::tm& now() const { return options_.now; }

  // Counts one step and `bytes` of copying, comparing or searching. Error when the budget is spent, and when
  // the render is cancelled.
  void charge(std::size_t bytes = 0);
  void charge_product(std::size_t count, std::size_t bytes);
  // Searching is linear, but costs more a byte where the part is long.
  void charge_search(const Text& text, const Text& part) {
    charge_product(text.size(), part.size() > 64 ? 8 : 1);
  }

  Value make(Text text);
  Value make(std::string_view text, bool trusted) { return make(Text(text, trusted)); }
  Value make(std::vector<Value> items, ListKind kind = ListKind::kList);
  Value make(Items items);
  Value make(Namespace object) { return {keep(std::move(object), kBytesPerStep)}; }
  Value make(Loop loop) { return {keep(loop, sizeof(Loop))}; }
  Value make(Callable callable) { return {keep(callable, sizeof(Callable))}; }
  Value undefined(std::string_view message) { return {Undefined{make(message, true).text()}}; }

  // Recursion of the interpreter and of natives that apply natives; lasts as long as what it returns.
  [[nodiscard]] Restore<std::size_t> descend();

 private:
  template <typename Held>
  Held* keep(Held held, std::size_t bytes) {
    charge(bytes);
    return &std::get<std::deque<Held>>(kept_).emplace_back(std::move(held));
  }

  const Limits& limits_;
  const RenderOptions& options_;
  std::size_t steps_ = 0;
  std::size_t depth_ = 0;
  std::tuple<std::deque<Text>, std::deque<List>, std::deque<Dict>, std::deque<Namespace>, std::deque<Loop>,
             std::deque<Callable>>
      kept_;
};

std::string type_name(const Value& value);  // as Python's messages name it
bool truth(const Value& value);

// What iterating over a value yields; Error if it is not iterable. Consumes a generator.
std::span<const Value> iterate(Runtime& runtime, const Value& value);
std::size_t length_of(Runtime& runtime, const Value& value);

// Python's operators; Error for operands it would refuse, and where an integer leaves 64 bits.
using Operator = Value(Runtime& runtime, const Value& left, const Value& right);
Operator add, subtract, multiply, divide, floor_divide, modulo, power;
using Comparison = bool(Runtime& runtime, const Value& left, const Value& right);
Comparison equal, not_equal, less, less_equal, greater, greater_equal, in, not_in;

bool is_hashable(Runtime& runtime, const Value& key);
void require_hashable(Runtime& runtime, const Value& key);
const Value* find_key(Runtime& runtime, const Items& items, const Value& key);  // null if absent
const Value* find_key(Runtime& runtime, const Items& items, std::string_view key);
// Builds a dict's items as Python does: a repeated key keeps its place and takes the new value.
void set_key(Runtime& runtime, Items& items, const Value& key, const Value& value);

std::optional<std::int64_t> as_integer(const Value& value);  // of an int or a bool
std::optional<double> as_number(const Value& value);         // of a float too
inline Value count_value(std::size_t count) { return {static_cast<std::int64_t>(count), false}; }

// Refuse what Python would.
void require_defined(const Value& value);
std::int64_t require_integer(const Value& value);
const Text& require_text(const Value& value);

Value with_sign(const Value& operand, bool negative);

[[noreturn]] void fail_range();

// object[start:stop:step]; None where a bound is absent.
Value slice(Runtime& runtime, const Value& object, const Value& start, const Value& stop, const Value& step);

// Python's str(); an undefined value prints as nothing. A text is itself, so who copies it charges for that.
const Text& text_of(Runtime& runtime, const Value& value);
Text to_repr(Runtime& runtime, const Value& value);  // Python's repr(), as inside a printed list

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // one level of it; absent: everything on one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
Text to_json(Runtime& runtime, const Value& value, const JsonStyle& style);  // Python's json.dumps

// Python's str % value, for %s %r %d %i %f %.Nf and %%.
Text percent_format(Runtime& runtime, const Text& format, const Value& value);

}  // namespace quire::jinja
