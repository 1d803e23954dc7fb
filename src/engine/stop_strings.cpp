#include "engine/stop_strings.h"

#include <algorithm>
#include <string_view>

namespace quire {

std::size_t StopStrings::find(const std::string& text, std::size_t old_size) const {
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t from = old_size >= stop.size() ? old_size - stop.size() + 1 : 0;
    first = std::min(first, text.find(stop, from));
  }
  return first;
}

std::size_t StopStrings::end_at(const std::string& text, std::size_t begin, std::size_t old_size) const {
  std::size_t end = text.size();
  for (const std::string& stop : stops_) {
    const bool counts = begin + stop.size() > old_size;
    if (counts && std::string_view(text).substr(begin).starts_with(stop))
      end = std::min(end, begin + stop.size());
  }
  return end;
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
