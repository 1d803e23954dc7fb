#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace quire {

// Error if untrusted text is too long, or has a NUL byte: the library would take it for the end.
void check_json_text(std::string_view text, std::string_view where, const JsonLimits& limits);
// Error that says at what parsing stopped, the last of so many bytes, and in which line and column that is.
[[noreturn]] void fail_syntax(std::string_view text, std::string_view where, std::size_t position,
                              const nlohmann::json::exception& error);

// Receives the events of the library's parser (J::sax_parse) and makes a value of them, in time that grows
// with the text whatever its shape. Refuses what the library would let pass: see parse_json.
template <typename J>
class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, std::string_view where, const JsonLimits& limits)
      : text_(text), where_(where), limits_(limits) {
    check_json_text(text, where, limits);
  }

  bool null() { return add(nullptr); }
  bool boolean(bool flag) { return add(flag); }
  bool number_integer(std::int64_t number) { return add(number); }
  bool number_unsigned(std::uint64_t number) { return add(number); }
  bool number_float(double number, const std::string&) { return add(number); }
  bool string(std::string& text) { return add(std::move(text)); }
  bool binary(typename J::binary_t&) { return add(nullptr); }  // never in text

  bool start_object(std::size_t) { return open(); }
  bool key(std::string& name) {
    keys_.push_back(std::move(name));
    if (keys_.size() - open_.back().first_key > kMaxKeys)
      fail("{}: an object of more than {} keys", where_, kMaxKeys);
    return true;
  }
  bool end_object() {
    const Container object = open_.back();
    check_keys(object);
    typename J::object_t members;
    // Ordered JSON's own insertion would look through all members, and copy them when it grows.
    if constexpr (kOrdered) members.reserve(keys_.size() - object.first_key);
    for (std::size_t key = object.first_key, value = object.first_value; key < keys_.size(); ++key, ++value) {
      if constexpr (kOrdered)
        members.emplace_back(std::move(keys_[key]), std::move(values_[value]));
      else
        members.emplace(std::move(keys_[key]), std::move(values_[value]));
    }
    return close(std::move(members));
  }
  bool start_array(std::size_t) { return open(); }
  bool end_array() {
    const auto first = values_.begin() + static_cast<std::ptrdiff_t>(open_.back().first_value);
    return close(typename J::array_t(std::make_move_iterator(first), std::make_move_iterator(values_.end())));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
    fail_syntax(text_, where_, position, error);
  }

  J take() { return std::move(values_.front()); }  // when the parser has returned

 protected:
  std::string_view where() const { return where_; }
  // Whether the key just read is `name` in the object that is `parent` in the outermost one.
  bool is_at(std::string_view parent, std::string_view name) const {
    if (open_.size() != 2) return false;
    const std::size_t first = open_.back().first_key;
    return first > 0 && keys_.size() > first && keys_[first - 1] == parent && keys_.back() == name;
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<J, OrderedJson>;
  static constexpr std::size_t kMaxKeys = kOrdered ? 4096 : std::numeric_limits<std::size_t>::max();

  // An object or array that has not ended: where what it holds begins in values_, and in keys_.
  struct Container {
    std::size_t first_value, first_key;
  };

  void count_value() {
    if (++num_values_ > limits_.max_values) fail("{}: more than {} JSON values", where_, limits_.max_values);
  }
  template <typename Value>
  bool add(Value&& value) {
    count_value();
    values_.emplace_back(std::forward<Value>(value));
    return true;
  }
  bool open() {
    count_value();
    if (open_.size() == limits_.max_depth)
      fail("{}: JSON nested deeper than {} levels", where_, limits_.max_depth);
    open_.push_back({values_.size(), keys_.size()});
    return true;
  }
  // Puts the whole in the place of its parts.
  bool close(J whole) {
    values_.resize(open_.back().first_value);
    keys_.resize(open_.back().first_key);
    open_.pop_back();
    values_.push_back(std::move(whole));
    return true;
  }
  void check_keys(const Container& object) {
    sorted_.assign(keys_.begin() + static_cast<std::ptrdiff_t>(object.first_key), keys_.end());
    std::ranges::sort(sorted_);
    const auto twice = std::adjacent_find(sorted_.begin(), sorted_.end());
    if (twice != sorted_.end()) fail("{}: the key {} stands twice in one object", where_, in_quotes(*twice));
  }

  std::string_view text_, where_;
  const JsonLimits limits_;
  std::size_t num_values_ = 0;
  std::vector<Container> open_;
  std::vector<J> values_;          // those that stand in no ended object or array
  std::vector<std::string> keys_;  // of the open objects' members
  std::vector<std::string_view> sorted_;
};

}  // namespace quire
