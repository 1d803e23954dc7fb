#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace quire {

// The whole of a text as a number.
template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace quire
