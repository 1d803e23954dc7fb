#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace quire {

// Finds stop strings in a text that grows, across the borders of its pieces.
class StopStrings {
 public:
  StopStrings() = default;
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Where the earliest stop string begins, looking only where one can have ended since the text had
  // `old_size` bytes; npos: nowhere.
  std::size_t find(const std::string& text, std::size_t old_size) const;
  // Where the shortest of those ends that begin at `begin` and were not there when the text had `old_size`
  // bytes; there is one.
  std::size_t end_at(const std::string& text, std::size_t begin, std::size_t old_size) const;
  // How many bytes at the text's end could be the beginning of a stop string.
  std::size_t held_back(const std::string& text) const;

 private:
  std::vector<std::string> stops_;
};

}  // namespace quire
