#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/jinja_value.h"

namespace quire::jinja {

struct Arguments {
  std::vector<Value> positional;
  Items named;  // by text
};

constexpr std::size_t kMaxParameters = 4;

// One use of a builtin, and what it is given.
struct Invocation {
  Runtime& runtime;
  const Value& self;  // the filtered or tested value, or the object of a method
  const Arguments& arguments;
  std::array<const Value*, kMaxParameters> bound = {};  // an argument for each parameter; null where absent

  const Value* operator[](std::size_t i) const { return bound[i]; }
  const Value* given(std::size_t i) const {  // null also where it is None
    return bound[i] == nullptr || bound[i]->is_none() ? nullptr : bound[i];
  }
  bool flag(std::size_t i) const { return bound[i] != nullptr && truth(*bound[i]); }
  const Text& text(std::size_t i) const { return require_text(*bound[i]); }
  const Text* text_or_none(std::size_t i) const { return given(i) == nullptr ? nullptr : &text(i); }
  std::int64_t integer(std::size_t i, std::int64_t absent) const {
    return bound[i] == nullptr ? absent : require_integer(*bound[i]);
  }
};

constexpr std::string_view kAnything = "*";  // the parameter of a builtin that reads the arguments itself

// A filter, test, method or global function.
struct Builtin {
  std::string_view name;
  Value (*run)(const Invocation&) = nullptr;  // null: a method that would change its object, so is refused
  std::array<std::string_view, kMaxParameters> parameters = {};
  std::size_t required = 0;  // of the parameters, the first so many
};

// All are null if there is none of that name.
const Builtin* find_builtin(std::span<const Builtin> table, std::string_view name);
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global(std::string_view name);

std::span<const Builtin> text_methods();

// Binds the arguments to the parameters as Python does. Error on too many, unknown, doubled or missing ones.
Value invoke(Runtime& runtime, const Builtin& builtin, const Value& self, const Arguments& arguments);

// obj.name and obj[key] as Jinja resolves them; undefined if there is no such thing. Nothing but JSON-like
// values and the objects of the interpreter has attributes at all.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);

// The items of a dict as tuples of a key and a value.
std::vector<Value> pairs_of(Runtime& runtime, const Items& items);

// Thrown by raise_exception: its text is the template's own message and stays as it is.
class RaisedByTemplate : public Error {
 public:
  using Error::Error;
};

// ---- What string methods, filters and tests share. Offsets are bytes.

// append(std::string& out, char32_t code_point) for each; the trust of what it appends is the code point's.
template <typename Append>
Value map_code_points(Runtime& runtime, const Value& value, Append&& append) {
  const Text& text = text_of(runtime, value);
  runtime.charge(2 * text.memory());
  Text result;
  text.for_each_run([&](std::string_view run, bool trusted) {
    std::string mapped;
    for (const Character& character : Characters(run)) append(mapped, character.code_point);
    result.append(mapped, trusted);
  });
  return runtime.make(std::move(result));
}

// What works alike on a string and, as a filter or a test, on what any other value prints as.
template <void (*append)(std::string&, char32_t)>
Value mapped(const Invocation& call) {
  return map_code_points(call.runtime, call.self, append);
}
// The first letter of each word by `first`, the rest in lower case. A word begins behind what `separates`.
template <void (*first)(std::string&, char32_t), bool (*separates)(char32_t)>
Value capitalized(const Invocation& call) {
  bool begins = true;
  return map_code_points(call.runtime, call.self, [&](std::string& out, char32_t c) {
    begins ? first(out, c) : append_lower(out, c);
    begins = separates(c);
  });
}
constexpr bool never(char32_t) { return false; }
// Whether there is a wanted code point and none that is not.
template <bool (*wanted)(char32_t), bool (*unwanted)(char32_t)>
Value has_only(const Invocation& call) {
  const Text& text = text_of(call.runtime, call.self);
  call.runtime.charge(2 * text.size());
  bool found = false;
  for (const auto& [begin, end, c] : Characters(text.bytes())) {
    if (unwanted(c)) return {false};
    found |= wanted(c);
  }
  return {found};
}
Value strip(const Invocation& call);  // the code points in its argument, or spaces, off both ends

Text strip_spaces(Runtime& runtime, const Text& text);

// Replaces up to `count` occurrences, all of them if it is negative.
Value replace(Runtime& runtime, const Text& text, const Text& old, const Text& replacement,
              std::int64_t count);

std::vector<Value> split_lines(Runtime& runtime, const Text& text);
Value join(Runtime& runtime, const Text& separator, std::span<const Value> items);  // items by str()

}  // namespace quire::jinja
