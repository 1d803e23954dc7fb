#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace quire {

// Strings with values, to find those that a text begins with. Immutable, usable from any thread.
class ByteTrie {
 public:
  using Entry = std::pair<std::string_view, std::int32_t>;

  // Distinct strings that are not empty, of under 2^32 bytes in all, and values from 0 on.
  explicit ByteTrie(std::vector<Entry> entries);

  // Calls found(length, value) for each string that `text` begins with, the shortest first.
  template <typename Found>
  void find_prefixes(std::string_view text, Found&& found) const {
    const Node* node = &nodes_.front();
    for (std::size_t length = 0; length < text.size();) {
      const auto first = nodes_.begin() + node->first_child;
      const auto byte = static_cast<unsigned char>(text[length++]);
      const auto child =
          std::lower_bound(first, first + node->children, byte,
                           [](const Node& candidate, unsigned char b) { return candidate.byte < b; });
      if (child == first + node->children || child->byte != byte) return;
      node = &*child;
      if (node->value >= 0) found(length, node->value);
    }
  }

 private:
  struct Node {
    std::uint32_t first_child = 0;  // the children lie side by side, in order of their bytes
    std::int32_t value = -1;        // -1: no string ends here
    std::uint16_t children = 0;
    unsigned char byte = 0;  // that leads here
  };

  std::vector<Node> nodes_;
};

inline ByteTrie::ByteTrie(std::vector<Entry> entries) : nodes_(1) {
  std::ranges::sort(entries);
  struct Range {  // the entries below a node, which share `depth` bytes
    std::size_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, entries.size(), 0}};
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    if (begin < end && entries[begin].first.size() == depth) nodes_[node].value = entries[begin++].second;
    nodes_[node].first_child = static_cast<std::uint32_t>(nodes_.size());
    while (begin < end) {
      const auto byte = static_cast<unsigned char>(entries[begin].first[depth]);
      std::size_t last = begin;
      while (last < end && static_cast<unsigned char>(entries[last].first[depth]) == byte) ++last;
      nodes_.push_back({.byte = byte});
      ranges.push_back({begin, last, depth + 1});
      ++nodes_[node].children;
      begin = last;
    }
  }
}

}  // namespace quire
