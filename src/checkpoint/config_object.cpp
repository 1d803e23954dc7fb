#include "checkpoint/config_object.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace quire {
namespace {

constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

std::string describe_range(DoubleRange range) {
  const bool bounded = range.max < std::numeric_limits<float>::max();
  if (range.min == kPositive.min)
    return bounded ? format_text("a number above 0 and at most {}", range.max) : "a positive number";
  if (range.min == DoubleRange{}.min && !bounded) return "a number";
  return bounded ? format_text("a number from {} to {}", range.min, range.max)
                 : format_text("a number not below {}", range.min);
}

}  // namespace

ConfigObject::ConfigObject(std::string_view text, std::string where)
    : ConfigObject(std::make_shared<const Json>(parse_json(text, where, {.max_bytes = kMaxConfigBytes})),
                   where) {}

ConfigObject::ConfigObject(std::shared_ptr<const Json> json, std::string where, std::string path)
    : json_(std::move(json)), where_(std::move(where)), path_(std::move(path)) {
  if (!json_->is_object()) fail("{}: must hold a JSON object, not {}", where_, describe(*json_));
}

ConfigObject ConfigObject::read_file(const std::filesystem::path& path) {
  return {read_text_file(path, kMaxConfigBytes), path.string()};
}

ConfigObject::Found ConfigObject::find(const ConfigKey& key) const {
  for (const std::string_view spelling : key.spellings()) {
    const auto found = json_->find(spelling);
    if (found != json_->end() && !found->is_null()) return {spelling, &*found};
  }
  return {key.spellings().front(), nullptr};
}

bool ConfigObject::empty() const { return json_->empty(); }

bool ConfigObject::is_null(const std::string& key) const {
  return json_->contains(key) && json_->at(key).is_null();
}

std::vector<std::string> ConfigObject::keys() const {
  std::vector<std::string> keys;
  for (const auto& item : json_->items()) keys.push_back(item.key());
  return keys;
}

void ConfigObject::fail_at(std::string_view key, std::string_view problem) const {
  fail("{}: \"{}{}\" {}", where_, path_, key, problem);
}

void ConfigObject::fail_absent(const ConfigKey& key) const {
  const auto& spellings = key.spellings();
  std::string also;
  if (spellings.size() > 1)
    also = format_text(" (also known as {})", join_text(std::span(spellings).subspan(1), ", "));
  fail_at(spellings.front(), "is missing" + also);
}

void ConfigObject::fail_type(std::string_view key, std::string_view expected, const Json& value) const {
  fail_at(key, format_text("must be {}, not {}", expected, describe(value)));
}

int ConfigObject::to_int(std::string_view key, const Json& value, IntRange range) const {
  // Above 2^63 the parser keeps an unsigned number, which would wrap when read as a signed one.
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{INT32_MAX});
  if (!fits || value.get<std::int64_t>() < range.min || value.get<std::int64_t>() > range.max)
    fail_type(key, format_text("a whole number from {} to {}", range.min, range.max), value);
  return value.get<int>();
}

double ConfigObject::to_double(std::string_view key, const Json& value, DoubleRange range) const {
  if (!value.is_number() || !(value.get<double>() >= range.min && value.get<double>() <= range.max))
    fail_type(key, describe_range(range), value);
  return value.get<double>();
}

std::optional<int> ConfigObject::find_int(const ConfigKey& key, IntRange range) const {
  const auto [name, value] = find(key);
  return value == nullptr ? std::nullopt : std::optional(to_int(name, *value, range));
}

std::optional<double> ConfigObject::find_double(const ConfigKey& key, DoubleRange range) const {
  const auto [name, value] = find(key);
  return value == nullptr ? std::nullopt : std::optional(to_double(name, *value, range));
}

std::optional<float> ConfigObject::find_float(const ConfigKey& key, DoubleRange range) const {
  constexpr double kMaxFloat = std::numeric_limits<float>::max();
  const auto value = find_double(key, {range.min, std::min(range.max, kMaxFloat)});
  return value ? std::optional(static_cast<float>(*value)) : std::nullopt;
}

std::optional<bool> ConfigObject::find_bool(const ConfigKey& key) const {
  const auto [name, value] = find(key);
  if (value == nullptr) return {};
  if (!value->is_boolean()) fail_type(name, "true or false", *value);
  return value->get<bool>();
}

std::optional<std::string> ConfigObject::find_string(const ConfigKey& key) const {
  const auto [name, value] = find(key);
  if (value == nullptr) return {};
  if (!value->is_string()) fail_type(name, "a string", *value);
  return value->get<std::string>();
}

std::optional<ConfigObject> ConfigObject::find_object(const ConfigKey& key) const {
  const auto [name, value] = find(key);
  if (value == nullptr) return {};
  if (!value->is_object()) fail_type(name, "an object", *value);
  return ConfigObject(std::shared_ptr<const Json>(json_, value), where_, format_text("{}{}.", path_, name));
}

std::vector<int> ConfigObject::get_ints(const ConfigKey& key, IntRange range) const {
  const auto [name, value] = find(key);
  std::vector<int> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array()) fail_type(name, "a list of whole numbers", *value);
  for (const Json& item : *value) numbers.push_back(to_int(name, item, range));
  return numbers;
}

std::vector<double> ConfigObject::get_doubles(const ConfigKey& key, DoubleRange range) const {
  const auto [name, value] = find(key);
  std::vector<double> numbers;
  if (value == nullptr) return numbers;
  if (!value->is_array()) fail_type(name, "a list of numbers", *value);
  for (const Json& item : *value) numbers.push_back(to_double(name, item, range));
  return numbers;
}

std::vector<std::string> ConfigObject::get_strings(const ConfigKey& key) const {
  const auto [name, value] = find(key);
  std::vector<std::string> strings;
  if (value == nullptr) return strings;
  if (!value->is_array()) fail_type(name, "a list of strings", *value);
  for (const Json& item : *value) {
    if (!item.is_string()) fail_type(name, "a list of strings", item);
    strings.push_back(item.get<std::string>());
  }
  return strings;
}

std::vector<std::int32_t> ConfigObject::get_token_ids(const ConfigKey& key) const {
  constexpr IntRange kTokenIds{.min = 0};
  const auto [name, value] = find(key);
  if (value != nullptr && !value->is_array()) return {to_int(name, *value, kTokenIds)};
  return get_ints(key, kTokenIds);
}

}  // namespace quire
