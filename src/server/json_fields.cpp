#include "server/json_fields.h"

#include <algorithm>
#include <array>
#include <boost/beast/core/string.hpp>
#include <cmath>

#include "base/parse_number.h"
#include "server/api_error.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxValues = std::size_t{1} << 21;  // as many tokens as the body can name, nearly
constexpr std::size_t kMaxMessageBytes = 300;

[[noreturn]] void wrong(const OrderedJson& value, const std::string& place, const std::string& right) {
  refuse(place, "is {}; it must be {}", shown(value), right);
}

// What a text says that is a number, or the value as it is: clients of vLLM, whose models are lax, send both.
OrderedJson lax_number(const OrderedJson& value) {
  if (!value.is_string()) return value.is_number() ? value : OrderedJson();
  const std::string& text = value.get_ref<const std::string&>();
  if (const auto whole = parse_number<std::int64_t>(text)) return *whole;
  const auto real = parse_number<double>(text);
  return real && std::isfinite(*real) ? OrderedJson(*real) : OrderedJson();
}

}  // namespace

OrderedJson parse_text(std::string_view text, std::string_view where, const std::string& param) {
  try {
    // The size of a body is the HTTP server's to limit.
    return parse_ordered_json(text, where, {.max_depth = kMaxDepth, .max_values = kMaxValues});
  } catch (const Error& e) {
    const std::string_view message = e.what();  // it may name a key
    throw ApiError(400, std::string(message.substr(0, kMaxMessageBytes)), param);
  }
}

OrderedJson parse_body(std::string_view body) {
  OrderedJson parsed = parse_text(body, "the body", "");
  if (!parsed.is_object()) throw ApiError(400, "the body must be a JSON object");
  return parsed;
}

std::string shown(const OrderedJson& value) {
  if (value.is_array()) return "a list";
  if (value.is_object()) return "an object";
  return value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : value.dump();
}

std::int64_t to_integer(const OrderedJson& given, const std::string& place, std::int64_t min,
                        std::int64_t max) {
  const OrderedJson value = lax_number(given);
  const auto bad = [&] { wrong(given, place, format_text("a whole number from {} to {}", min, max)); };
  constexpr std::uint64_t kMaxUnsigned = std::numeric_limits<std::int64_t>::max();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!value.is_number()) bad();
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMaxUnsigned) bad();
  const double real = value.is_number_float() ? value.get<double>() : 0;
  if (!(std::abs(real) <= kExact) || std::trunc(real) != real) bad();
  const auto number = value.get<std::int64_t>();
  if (number < min || number > max) bad();
  return number;
}

float to_float(const OrderedJson& given, const std::string& place) {
  const OrderedJson value = lax_number(given);
  if (!value.is_number()) wrong(given, place, "a number");
  constexpr double kMax = std::numeric_limits<float>::max();
  return static_cast<float>(std::clamp(value.get<double>(), -kMax, kMax));
}

bool to_bool(const OrderedJson& value, const std::string& place) {
  if (value.is_boolean()) return value.get<bool>();
  const std::string text = value.is_string() ? value.get<std::string>() : shown(value);
  const auto is_text = [&](std::string_view name) { return boost::beast::iequals(name, text); };
  constexpr std::array<std::string_view, 7> kTrue = {"true", "t", "yes", "y", "on", "1", "1.0"};
  constexpr std::array<std::string_view, 7> kFalse = {"false", "f", "no", "n", "off", "0", "0.0"};
  if (std::ranges::any_of(kTrue, is_text)) return true;
  if (std::ranges::none_of(kFalse, is_text)) wrong(value, place, "true or false");
  return false;
}

const std::string& to_text(const OrderedJson& value, const std::string& place) {
  if (!value.is_string()) wrong(value, place, "a string");
  return value.get_ref<const std::string&>();
}

const OrderedJson& to_object(const OrderedJson& value, const std::string& place) {
  if (!value.is_object()) wrong(value, place, "an object");
  return value;
}

const OrderedJson& to_list(const OrderedJson& value, const std::string& place) {
  if (!value.is_array()) wrong(value, place, "a list");
  return value;
}

std::vector<std::int32_t> to_token_ids(const OrderedJson& value, const std::string& place, int vocab_size) {
  std::vector<std::int32_t> ids;
  ids.reserve(to_list(value, place).size());
  for (const OrderedJson& id : value) {
    // The place is spelled out only where it is needed: there may be a million of them.
    const bool fits =
        id.is_number_unsigned() && id.get<std::uint64_t>() < static_cast<std::uint64_t>(vocab_size);
    ids.push_back(static_cast<std::int32_t>(
        fits ? id.get<std::int64_t>()
             : to_integer(id, format_text("{}[{}]", place, ids.size()), 0, vocab_size - 1)));
  }
  return ids;
}

const std::string& to_choice(const OrderedJson& value, const std::string& place,
                             std::initializer_list<std::string_view> choices) {
  const std::string& text = to_text(value, place);
  if (std::ranges::find(choices, text) == choices.end())
    refuse(place, "is {}, which is not supported; it may be {}", in_quotes(text), join_text(choices, ", "));
  return text;
}

std::vector<std::string> to_texts(const OrderedJson& value, const std::string& place) {
  return to_each(value, place, to_text);
}

JsonFields to_fields(const OrderedJson& value, const std::string& place) { return JsonFields(value, place); }

std::vector<JsonFields> to_objects(const OrderedJson& value, const std::string& place) {
  return to_each(value, place, to_fields);
}

std::string JsonFields::place_of(std::string_view name) const {
  return place_.empty() ? std::string(name) : format_text("{}.{}", place_, name);
}

const OrderedJson* JsonFields::find(std::string_view name) const {
  const auto found = object_->find(name);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

const OrderedJson& JsonFields::required(std::string_view name) const {
  const OrderedJson* value = find(name);
  if (value == nullptr) refuse(place_of(name), "is missing");
  return *value;
}

bool JsonFields::asks(std::string_view name) const {
  const OrderedJson* value = find(name);
  return value != nullptr && *value != "" && *value != false && !value->empty();  // a number is not empty
}

const std::string* JsonFields::text(std::string_view name) const {
  const OrderedJson* value = find(name);
  return value == nullptr ? nullptr : &to_text(*value, place_of(name));
}

}  // namespace quire::server
