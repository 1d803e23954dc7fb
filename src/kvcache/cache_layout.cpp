#include "kvcache/cache_layout.h"

#include <algorithm>
#include <ranges>

namespace quire {

int CacheLayout::farthest_lane() const {
  const auto reach = [](int window) { return window == 0 ? kMaxTokens : window; };
  const auto less = [&](int a, int b) { return reach(a) < reach(b); };
  return static_cast<int>(std::ranges::max_element(windows, less) - windows.begin());
}

bool CacheLayout::leaves_rows(int from, int to) const {
  for (int lane = 0; lane < num_lanes(); ++lane)
    if (num_outside(lane, from) < num_outside(lane, to)) return true;
  return false;
}

std::uint64_t CacheLayout::attention_pairs(int lane, int first, int count) const {
  const auto window = static_cast<std::uint64_t>(windows[lane]);
  const auto up_to = [window](std::uint64_t tokens) {
    const std::uint64_t near = window == 0 ? tokens : std::min(tokens, window);
    return near * (near + 1) / 2 + (tokens - near) * near;
  };
  const auto before = static_cast<std::uint64_t>(first);
  return up_to(before + static_cast<std::uint64_t>(count)) - up_to(before);
}

std::int64_t CacheLayout::blocks_held(int length, int span, int position, int num_rows) const {
  std::int64_t count = 0;
  for (int lane = 0; lane < num_lanes(); ++lane) {
    const int window = windows[lane];
    const int outside = num_outside(lane, position);
    const int all = rows_for(length) - outside;
    const int at_once = window == 0 ? all : std::min(all, blocks_across(window - 1 + span, block_size));
    count += std::max(num_rows - outside, at_once);
  }
  return count;
}

int CacheLayout::longest(int num_blocks) const {
  const auto rows = std::views::iota(1, kMaxTokens / block_size + 1);
  const auto fits = [&](int n) { return blocks_held(n * block_size, 1) <= num_blocks; };
  return static_cast<int>(std::ranges::partition_point(rows, fits) - rows.begin()) * block_size;
}

}  // namespace quire
