#include "runner/cache_shape.h"

#include <algorithm>

#include "base/error.h"

namespace quire {

CacheShape::CacheShape(const StateDeclarations& states, int block_size) {
  const auto groups = states.groups();
  const auto group_of = states.group_of();
  const int num_layers = static_cast<int>(group_of.size());
  std::vector<int> sizes(groups.size());
  for (const int group : group_of) ++sizes[static_cast<std::size_t>(group)];
  for (const StateSpec& spec : groups)
    QUIRE_CHECK(spec.num_kv_heads == groups[0].num_kv_heads && spec.head_dim == groups[0].head_dim,
                "layers of one cache have keys of one size");
  const auto lanes_of = [this](int size) { return (size + layers_per_block - 1) / layers_per_block; };
  const auto fits = [&] {
    int num_lanes = 0;
    for (const int size : sizes) num_lanes += lanes_of(size);
    return 20 * (num_lanes * layers_per_block - num_layers) <= num_lanes * layers_per_block;
  };
  layers_per_block = *std::max_element(sizes.begin(), sizes.end());
  while (!fits()) --layers_per_block;

  layout.block_size = block_size;
  layout.windows.clear();
  std::vector<Place> next;  // by group
  for (std::size_t group = 0; group < groups.size(); ++group) {
    next.push_back({static_cast<int>(lanes.size()), 0});
    for (int left = sizes[group]; left > 0; left -= layers_per_block) {
      lanes.push_back({static_cast<int>(group), std::min(left, layers_per_block)});
      layout.windows.push_back(groups[group].window);
    }
  }
  for (const int group : group_of) {
    Place& place = next[static_cast<std::size_t>(group)];
    places.push_back(place);
    if (++place.index == layers_per_block) place = {place.lane + 1, 0};
  }
}

}  // namespace quire
