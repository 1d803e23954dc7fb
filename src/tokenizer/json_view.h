#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "tokenizer/unicode.h"

namespace quire {

// A value of a JSON file together with its place ("tokenizer.json: decoder.type"), so that every wrong type
// or missing key is an Error naming it. Lives shorter than the document it looks at.
class JsonView {
 public:
  JsonView(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  // The member `key` of an object; nothing if absent or null.
  std::optional<JsonView> find(const std::string& key) const {
    if (!value_->is_object()) fail("{}: must be an object", file_or_place());
    const auto member = value_->find(key);
    if (member == value_->end() || member->is_null()) return std::nullopt;
    return JsonView(*member, where_.ends_with(':') ? where_ + " " + key : where_ + "." + key);
  }
  JsonView at(const std::string& key) const {
    if (auto member = find(key)) return *std::move(member);
    fail("{}: the key \"{}\" is missing or null", file_or_place(), key);
  }
  std::vector<JsonView> items() const {
    if (!value_->is_array()) fail("{}: must be a list", where_);
    std::vector<JsonView> views;
    for (std::size_t i = 0; i < value_->size(); ++i)
      views.emplace_back((*value_)[i], where_ + "[" + std::to_string(i) + "]");
    return views;
  }

  const std::string& as_string() const {
    if (!value_->is_string()) fail("{}: must be a string", where_);
    return value_->get_ref<const std::string&>();
  }
  const std::string& as_character() const {
    const std::string& text = as_string();
    if (!is_character(text)) fail("{}: must be one character, is {}", where_, in_quotes(text));
    return text;
  }
  // The place of the string among `names`, of which it is one.
  std::size_t as_one_of(const std::vector<std::string_view>& names) const {
    const auto found = std::ranges::find(names, as_string());
    if (found != names.end()) return static_cast<std::size_t>(found - names.begin());
    fail("{}: {} is none of {} and {}", where_, in_quotes(as_string()),
         join_text(std::span(names).first(names.size() - 1), ", "), names.back());
  }
  bool as_bool() const {
    if (!value_->is_boolean()) fail("{}: must be true or false", where_);
    return value_->get<bool>();
  }
  std::int64_t as_int(std::int64_t low, std::int64_t high) const {
    const bool fits = value_->is_number_integer() &&
                      (!value_->is_number_unsigned() || value_->get<std::uint64_t>() <= INT64_MAX);
    const std::int64_t number = fits ? value_->get<std::int64_t>() : 0;
    if (!fits || number < low || number > high)
      fail("{}: must be a whole number from {} to {}, is {}", where_, low, high, value_->dump());
    return number;
  }
  double as_number() const {
    if (!value_->is_number()) fail("{}: must be a number", where_);
    return value_->get<double>();
  }

  bool flag(const std::string& key, bool absent) const {
    const auto member = find(key);
    return member ? member->as_bool() : absent;
  }

 private:
  // Of the top level, the file's name stands alone.
  std::string_view file_or_place() const {
    const std::string_view place(where_);
    return place.ends_with(':') ? place.substr(0, place.size() - 1) : place;
  }

  const Json* value_;
  std::string where_;
};

}  // namespace quire
