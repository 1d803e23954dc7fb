#pragma once

#include <vector>

#include "kvcache/cache_layout.h"
#include "layers/step.h"

namespace quire {

// Where the layers of a model lie in the blocks of its KV cache. All blocks are equal and belong to whichever
// lane takes them.
struct CacheShape {
  struct Lane {
    int group = 0;  // of StateDeclarations
    int num_layers = 0;
  };
  // Of a layer: its lane, and where it begins in a block, in bytes for each token and KV head.
  struct Place {
    int lane = 0;
    std::int64_t begin = 0;
  };

  CacheLayout layout;
  std::int64_t head_bytes = 0;  // of a block, for each token and KV head
  std::vector<StateSpec> groups;
  std::vector<Lane> lanes;      // by group
  std::vector<Place> places;    // by StateId
  std::int64_t used_bytes = 0;  // of all lanes' head_bytes, those that layers use

  // A block holds as much as it can while at most a twentieth of the memory lies idle: in the last lanes of
  // the groups, and where it holds no whole number of a group's layers. If that cannot be, what leaves the
  // least. dtype: of the activations.
  CacheShape(const StateDeclarations& states, int block_size, DType dtype);
  CacheShape() = default;

  const StateSpec& spec_of(std::size_t layer) const {
    return groups[static_cast<std::size_t>(lanes[static_cast<std::size_t>(places[layer].lane)].group)];
  }
  // Of the memory, what no layer uses.
  double idle_share() const {
    return 1 - static_cast<double>(used_bytes) / static_cast<double>(head_bytes) /
                   static_cast<double>(lanes.size());
  }
};

}  // namespace quire
