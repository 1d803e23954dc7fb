#pragma once

#include <array>
#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "tokenizer/jinja_value.h"

namespace quire::jinja {

// Null if there is none of that name.
Native find_filter(std::string_view name);
Native find_sequence_filter(std::string_view name);  // those of find_filter that work on lists
Native find_test(std::string_view name);
Native find_global(std::string_view name);

// obj.name and obj[key] as Jinja resolves them; undefined if there is no such thing. Nothing but JSON-like
// values and the objects of the interpreter has attributes at all.
Value get_attribute(Runtime& runtime, const Value& object, std::string_view name);
Value get_item(Runtime& runtime, const Value& object, const Value& key);

// The items of a dict as tuples of a key and a value.
std::vector<Value> pairs_of(Runtime& runtime, const Dict& dict);

// The methods of strings and of loops; null if there is none of that name.
Native find_text_method(std::string_view name);

// Thrown by raise_exception: its text is the template's own message and stays as it is.
class RaisedByTemplate : public Error {
 public:
  using Error::Error;
};

struct Builtin {
  std::string_view name;
  Native native;
};

template <std::size_t N>
Native find_builtin(const std::array<Builtin, N>& table, std::string_view name) {
  for (const Builtin& builtin : table) {
    if (builtin.name == name) return builtin.native;
  }
  return nullptr;
}

// Binds arguments to parameter names as Python does. Absent ones are null. Error on too many, unknown,
// doubled or missing ones; the first `required` must be there.
constexpr std::size_t kMaxParameters = 6;
std::array<const Value*, kMaxParameters> bind(const Invocation& call,
                                              std::initializer_list<std::string_view> names,
                                              std::size_t required = 0);

// Argument conversions that refuse what Python would.
std::int64_t require_integer(const Value& value);
const Text& require_text(const Value& value);

}  // namespace quire::jinja
