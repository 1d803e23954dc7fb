#include "runner/cache_shape.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace quire {
namespace {

// Layers of one declaration.
struct LayerGroup {
  std::int64_t size = 0;
  std::int64_t bytes = 0;  // of a layer: StateSpec::token_bytes
  bool is_whole = false;   // it has no window
};

std::vector<LayerGroup> groups_of(const StateDeclarations& states, DType dtype) {
  std::vector<LayerGroup> groups;
  for (const StateSpec& spec : states.groups())
    groups.push_back({0, spec.token_bytes(dtype), spec.window == 0});
  for (const int group : states.group_of()) ++groups[group].size;
  return groups;
}

// Sizes that hold a whole number of some group's layers, and one at least of each.
std::vector<std::int64_t> slot_sizes(const std::vector<LayerGroup>& groups) {
  constexpr std::int64_t kMostLayers = 4;
  std::int64_t largest = 0;
  for (const LayerGroup& group : groups) largest = std::max(largest, group.bytes);
  std::vector<std::int64_t> sizes;
  for (const LayerGroup& group : groups) {
    for (std::int64_t layers = 1; layers <= kMostLayers; ++layers)
      if (layers * group.bytes >= largest) sizes.push_back(layers * group.bytes);
  }
  std::ranges::sort(sizes);
  return sizes;
}

}  // namespace

CacheShape::CacheShape(const StateDeclarations& states, int block_size, DType dtype)
    : groups(states.groups().begin(), states.groups().end()),
      fixed(states.fixed().begin(), states.fixed().end()) {
  const std::vector<LayerGroup> layers = groups_of(states, dtype);
  std::int64_t most = 0, least_total = 0, used_whole = 0;
  for (const LayerGroup& group : layers) {
    used_bytes += group.size * group.bytes;
    if (group.is_whole) used_whole += group.size * group.bytes;
    most = std::max(most, group.size);
  }
  const auto choose = [&] {
    for (const std::int64_t bytes : slot_sizes(layers)) {
      for (auto slots = static_cast<int>(most); slots > 0; --slots) {
        std::int64_t total = 0, whole = 0;
        for (const LayerGroup& group : layers) {
          const std::int64_t per_block = bytes / group.bytes * slots;
          const std::int64_t taken = (group.size + per_block - 1) / per_block * slots * bytes;
          total += taken;
          if (group.is_whole) whole += taken;
        }
        if (least_total == 0 || total < least_total) {
          least_total = total;
          slot_bytes = bytes;
          num_slots = slots;
        }
        if (20 * (total - used_bytes) <= total && 4 * (whole - used_whole) <= whole) return;
      }
    }
  };
  choose();

  layout.block_size = block_size;
  layout.state_interval = fixed.empty() ? 0 : std::max(block_size, 64);
  layout.windows.clear();
  std::vector<std::int64_t> first_lanes, next(layers.size());
  for (std::size_t group = 0; group < layers.size(); ++group) {
    first_lanes.push_back(std::ssize(lanes));
    const std::int64_t per_block = slot_bytes / layers[group].bytes * num_slots;
    for (std::int64_t left = layers[group].size; left > 0; left -= per_block) {
      lanes.push_back({static_cast<int>(group), static_cast<int>(std::min(left, per_block))});
      layout.windows.push_back(groups[group].window);
    }
  }
  for (const int of : states.group_of()) {
    const auto group = static_cast<std::size_t>(of);
    const std::int64_t per_slot = slot_bytes / layers[group].bytes;
    const std::int64_t index = next[group]++, in_block = index % (per_slot * num_slots);
    places.push_back({static_cast<int>(first_lanes[group] + index / (per_slot * num_slots)),
                      static_cast<int>(in_block / per_slot), in_block % per_slot * layers[group].bytes});
  }
}

std::size_t CacheShape::state_bytes() const {
  std::int64_t values = 0;
  for (const std::vector<std::int64_t>& shape : fixed)
    values += std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  return static_cast<std::size_t>(values) * sizeof(float);
}

}  // namespace quire
