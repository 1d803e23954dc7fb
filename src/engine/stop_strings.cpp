#include "engine/stop_strings.h"

#include <algorithm>
#include <string_view>

namespace quire {

std::optional<StopStrings::Place> StopStrings::find(const std::string& text, std::size_t old_size) const {
  std::optional<Place> first;
  for (const std::string& stop : stops_) {
    const std::size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    const std::size_t begin = text.find(stop, from);
    if (begin == std::string::npos) continue;
    const Place place{begin, begin + stop.size()};
    first = std::min(first.value_or(place), place);
  }
  return first;
}

std::size_t StopStrings::held_back(const std::string& text) const {
  std::size_t longest = 0;
  for (const std::string& stop : stops_) {
    for (std::size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
    }
  }
  return longest;
}

}  // namespace quire
