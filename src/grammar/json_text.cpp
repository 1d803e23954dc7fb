#include "grammar/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/json.h"
#include "grammar/regex.h"

namespace quire::grammar {

bool may_be_rounded(const OrderedJson& number) {
  if (!number.is_number_float()) return false;
  const double value = number.get<double>();
  return value >= 0x1p64 || value <= -0x1p63;
}

Decimal::Decimal(const OrderedJson& number) : negative(number.get<double>() < 0) {
  std::string text = number.dump();
  if (number.is_number_float()) {
    std::array<char, 512> digits{};
    const auto end =
        std::to_chars(digits.begin(), digits.end(), number.get<double>(), std::chars_format::fixed);
    text.assign(digits.data(), end.ptr);
  }
  if (text.front() == '-') text.erase(0, 1);
  const std::size_t point = std::min(text.find('.'), text.size());
  whole = text.substr(0, point);
  fraction = text.substr(std::min(point + 1, text.size()));
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
}

std::optional<std::uint32_t> Decimal::as_factor() const {
  const std::string digits = whole + fraction;
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || value == 0 || value >= 1'000'000'000 || fraction.size() > 30 || negative)
    return std::nullopt;
  return value;
}

JsonText::JsonText(Expressions& expressions, const Source& source) : ex_(expressions) {
  constexpr std::string_view kSpace = " ?|\\r?\\n[ \\t]{0,64}";
  const auto make = [&](std::string_view regex) { return ex_.lexeme(utf8_regex(ex_, regex)); };
  const auto with_space = [&](char mark) { return ex_.concat({space_, ex_.literal({&mark, 1}), space_}); };
  space_ = source.disable_any_whitespace
               ? kEmpty
               : make(source.whitespace_pattern ? *source.whitespace_pattern : kSpace);
  comma_ = with_space(',');
  colon_ = with_space(':');
  integer_ = make("-?(0|[1-9][0-9]*)");
  number_ = make("-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?");
  plain_number_ = make("-?(0|[1-9][0-9]*)(\\.[0-9]+)?");
  not_integer_ = make("-?(0|[1-9][0-9]*)\\.[0-9]*[1-9][0-9]*");
  const CharacterSet plain = CharacterSet{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}.complement();
  // An escaped surrogate comes in a pair.
  character_ =
      ex_.any_of({utf8_character(ex_, plain),
                  utf8_regex(ex_,
                             "\\\\([\"\\\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
                             "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2}))")});
  canonical_ = ex_.repeat(canonical_character(CharacterSet::all()));
}

ExprId JsonText::quoted(ExprId body) const {
  const ExprId quote = ex_.literal("\"");
  return ex_.lexeme(ex_.concat({quote, body, quote}));
}

ExprId JsonText::canonical_character(const CharacterSet& set) const {
  std::vector<ExprId> parts = {utf8_character(ex_, set.without({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}))};
  constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  for (std::size_t i = 0; i < kShort.size(); ++i)
    if (set.has(static_cast<unsigned char>(kShort[i])))
      parts.push_back(ex_.literal(std::string("\\") + kLetters[i]));
  for (char32_t control = 0; control < 0x20; ++control) {
    if (!set.has(control) || kShort.find(static_cast<char>(control)) != std::string_view::npos) continue;
    const char lower = "0123456789abcdef"[control % 16], upper = "0123456789ABCDEF"[control % 16];
    parts.push_back(ex_.concat(ex_.literal(control < 16 ? "\\u000" : "\\u001"),
                               ex_.bytes(bytes_of(std::string{lower, upper}))));
  }
  return ex_.any_of(std::move(parts));
}

ExprId JsonText::pattern(std::string_view regex) {
  if (const auto known = patterns_.find(std::string(regex)); known != patterns_.end()) return known->second;
  return patterns_[std::string(regex)] = regex_expression(
             ex_, regex, [&](const CharacterSet& set) { return canonical_character(set); }, true);
}

ExprId JsonText::list(std::string_view brackets, ExprId items, bool may_be_empty) const {
  const ExprId inside = ex_.concat(items, space_);
  return ex_.concat({ex_.literal(brackets.substr(0, 1)), space_, may_be_empty ? ex_.optional(inside) : inside,
                     ex_.literal(brackets.substr(1))});
}

ExprId JsonText::any_value() {
  return ex_.recursive(any_value_, [&] {
    return ex_.any_of({any_object(), any_array(), any_string(), number_, ex_.literal("true"),
                       ex_.literal("false"), ex_.literal("null")});
  });
}

ExprId JsonText::any_object() {
  const ExprId member = ex_.concat({any_string(), colon_, any_value()});
  return list("{}", ex_.separated(member, comma_), true);
}

ExprId JsonText::any_array() { return list("[]", ex_.separated(any_value(), comma_), true); }

ExprId JsonText::literal(const OrderedJson& value) const {
  if (!value.is_structured()) return ex_.literal(value.dump());
  std::vector<ExprId> parts;
  for (const auto& [key, item] : value.items()) {
    if (!parts.empty()) parts.push_back(comma_);
    if (value.is_object()) parts.insert(parts.end(), {ex_.literal(OrderedJson(key).dump()), colon_});
    parts.push_back(literal(item));
  }
  return list(value.is_array() ? "[]" : "{}", parts.empty() ? kNothing : ex_.concat(parts), parts.empty());
}

}  // namespace quire::grammar
