#include "runner/cache_shape.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace quire {
namespace {

// Layers of one declaration, and how they share blocks.
struct LayerGroup {
  std::int64_t size = 0;
  std::int64_t bytes = 0;  // of a layer: StateSpec::head_bytes

  std::int64_t lanes_in(std::int64_t block) const {
    const std::int64_t per_block = block / bytes;
    return (size + per_block - 1) / per_block;
  }
};

}  // namespace

CacheShape::CacheShape(const StateDeclarations& states, int block_size, DType dtype)
    : groups(states.groups().begin(), states.groups().end()) {
  std::vector<LayerGroup> sizes;
  std::int64_t largest = 0;
  for (const StateSpec& spec : groups) {
    QUIRE_CHECK(spec.num_kv_heads == groups[0].num_kv_heads && spec.head_dim == groups[0].head_dim,
                "layers of one cache have keys of one size");
    sizes.push_back({0, spec.head_bytes(dtype)});
    largest = std::max(largest, sizes.back().bytes);
  }
  for (const int group : states.group_of()) ++sizes[static_cast<std::size_t>(group)].size;
  std::vector<std::int64_t> blocks;  // that hold a whole number of some group's layers
  for (const LayerGroup& group : sizes) {
    used_bytes += group.size * group.bytes;
    for (std::int64_t layers = 1; layers <= group.size; ++layers)
      if (layers * group.bytes >= largest) blocks.push_back(layers * group.bytes);
  }
  blocks.push_back(largest);
  std::sort(blocks.begin(), blocks.end(), std::greater());
  const auto total_of = [&](std::int64_t block) {
    std::int64_t num_lanes = 0;
    for (const LayerGroup& group : sizes) num_lanes += group.lanes_in(block);
    return num_lanes * block;
  };
  for (const std::int64_t block : blocks) {
    if (head_bytes == 0 || total_of(block) < total_of(head_bytes)) head_bytes = block;
    if (20 * (total_of(head_bytes) - used_bytes) <= total_of(head_bytes)) break;
  }

  layout.block_size = block_size;
  layout.windows.clear();
  std::vector<Place> next;  // by group
  for (std::size_t group = 0; group < groups.size(); ++group) {
    next.push_back({static_cast<int>(lanes.size()), 0});
    const std::int64_t per_block = head_bytes / sizes[group].bytes;
    for (std::int64_t left = sizes[group].size; left > 0; left -= per_block) {
      lanes.push_back({static_cast<int>(group), static_cast<int>(std::min(left, per_block))});
      layout.windows.push_back(groups[group].window);
    }
  }
  for (const int group : states.group_of()) {
    Place& place = next[static_cast<std::size_t>(group)];
    places.push_back(place);
    const std::int64_t bytes = sizes[static_cast<std::size_t>(group)].bytes;
    place.begin += bytes;
    if (place.begin + bytes > head_bytes) place = {place.lane + 1, 0};
  }
}

}  // namespace quire
