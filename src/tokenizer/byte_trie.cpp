#include "tokenizer/byte_trie.h"

namespace quire {

ByteTrie::ByteTrie(std::vector<Entry> entries) : nodes_(1) {
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
