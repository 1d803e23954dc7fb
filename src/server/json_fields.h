#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/json.h"

namespace quire::server {

// Of whole numbers that have no limit of their own.
constexpr int kLargestInt = std::numeric_limits<int>::max();

// JSON that a client has sent; param: the field it stands in, or empty. ApiError (400) begins with `where`.
OrderedJson parse_text(std::string_view text, std::string_view where, const std::string& param);
// The body of a request: one JSON object. ApiError (400).
OrderedJson parse_body(std::string_view body);

// A value of a request as it may stand in a message: one short line.
std::string shown(const OrderedJson& value);

// A value of a request; ApiError (400) when it is another one. `place` is what messages call it: "n",
// "messages[2].content". Numbers and truths may be texts, as vLLM takes them: "0.5", "yes".
std::int64_t to_integer(const OrderedJson& value, const std::string& place, std::int64_t min,
                        std::int64_t max);
float to_float(const OrderedJson& value, const std::string& place);  // what float cannot hold: its extremes
bool to_bool(const OrderedJson& value, const std::string& place);
const std::string& to_text(const OrderedJson& value, const std::string& place);
const OrderedJson& to_object(const OrderedJson& value, const std::string& place);
const OrderedJson& to_list(const OrderedJson& value, const std::string& place);
std::vector<std::int32_t> to_token_ids(const OrderedJson& value, const std::string& place, int vocab_size);
// A text that is one of these.
const std::string& to_choice(const OrderedJson& value, const std::string& place,
                             std::initializer_list<std::string_view> choices);
// What `convert` makes of each element of a list.
template <typename Convert>
auto to_each(const OrderedJson& value, const std::string& place, const Convert& convert) {
  std::vector<std::decay_t<decltype(convert(value, place))>> made;
  for (const OrderedJson& element : to_list(value, place))
    made.push_back(convert(element, format_text("{}[{}]", place, made.size())));
  return made;
}
std::vector<std::string> to_texts(const OrderedJson& value, const std::string& place);
class JsonFields;
JsonFields to_fields(const OrderedJson& value, const std::string& place);
std::vector<JsonFields> to_objects(const OrderedJson& value, const std::string& place);

// The fields of an object of a request, all of them optional: null counts as absent, and what nobody asks for
// is ignored. ApiError when a field is of the wrong type or out of range. Lives shorter than the object.
class JsonFields {
 public:
  // `place`: of the object, empty for the body.
  explicit JsonFields(const OrderedJson& object, std::string place = {})
      : object_(&to_object(object, place)), place_(std::move(place)) {}

  const OrderedJson& object() const { return *object_; }
  const std::string& place() const { return place_; }
  std::string place_of(std::string_view name) const;
  const OrderedJson* find(std::string_view name) const;      // null: absent
  const OrderedJson& required(std::string_view name) const;  // ApiError where it is absent
  // Whether it is there and not null, false, "", [] or {}.
  bool asks(std::string_view name) const;

  // What `convert` makes of the field; nothing where it is absent.
  template <typename Convert, typename... Limits>
  auto get(std::string_view name, const Convert& convert, const Limits&... limits) const {
    const OrderedJson* value = find(name);
    return value == nullptr ? std::nullopt : std::optional(convert(*value, place_of(name), limits...));
  }
  auto integer(std::string_view name, std::int64_t min, std::int64_t max) const {
    return get(name, to_integer, min, max);
  }
  auto boolean(std::string_view name) const { return get(name, to_bool); }
  auto choice(std::string_view name, std::initializer_list<std::string_view> choices) const {
    return get(name, to_choice, choices);
  }
  std::vector<JsonFields> objects(std::string_view name) const {
    return get(name, to_objects).value_or(std::vector<JsonFields>());
  }
  std::optional<JsonFields> object(std::string_view name) const { return get(name, to_fields); }
  const std::string* text(std::string_view name) const;  // null: absent
  // What `convert` makes of a field that must be there.
  template <typename Convert, typename... Limits>
  decltype(auto) required(std::string_view name, const Convert& convert, const Limits&... limits) const {
    return convert(required(name), place_of(name), limits...);
  }
  const std::string& required_text(std::string_view name) const { return required(name, to_text); }
  const std::string& required_choice(std::string_view name,
                                     std::initializer_list<std::string_view> choices) const {
    return required(name, to_choice, choices);
  }
  JsonFields required_object(std::string_view name) const { return required(name, to_fields); }
  // These leave `value` as it is where the field is absent.
  template <typename T, typename Convert, typename... Limits>
  void read(std::string_view name, T& value, const Convert& convert, const Limits&... limits) const {
    if (const OrderedJson* given = find(name))
      value = static_cast<T>(convert(*given, place_of(name), limits...));
  }
  void read(std::string_view name, float& value) const { read(name, value, to_float); }
  void read(std::string_view name, bool& value) const { read(name, value, to_bool); }

 private:
  const OrderedJson* object_;
  std::string place_;
};

}  // namespace quire::server
