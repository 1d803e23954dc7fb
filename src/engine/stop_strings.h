#pragma once

#include <compare>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace quire {

// Finds stop strings in a text that grows, across the borders of its pieces.
class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  struct Place {
    std::size_t begin, end;  // of a stop string in the text
    auto operator<=>(const Place&) const = default;
  };
  // The one that begins first, of those that begin there the shortest; looking only at those that can have
  // ended since the text had `old_size` bytes.
  std::optional<Place> find(const std::string& text, std::size_t old_size) const;
  // How many bytes at the text's end could be the beginning of a stop string.
  std::size_t held_back(const std::string& text) const;

 private:
  std::vector<std::string> stops_;
};

}  // namespace quire
