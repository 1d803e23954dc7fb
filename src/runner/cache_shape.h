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
  // Of a layer: its lane, its slot of the lane's blocks, and where it begins there, in bytes for each token.
  struct Place {
    int lane = 0;
    int slot = 0;
    std::int64_t begin = 0;
  };

  CacheLayout layout;
  std::int64_t slot_bytes = 0;  // of a block's slot, for each token
  int num_slots = 0;            // of a block; they lie apart, each beside those of the other blocks
  std::vector<StateSpec> groups;
  std::vector<Lane> lanes;                       // by group
  std::vector<Place> places;                     // by StateId
  std::int64_t used_bytes = 0;                   // of all lanes' slots, those that layers use
  std::vector<std::vector<std::int64_t>> fixed;  // by FixedStateId: the state's shape

  // A slot holds one layer, or as many of a group as fit where its layers are smaller than others'. A block
  // has as many slots as it can while at most a twentieth of the memory lies idle, and a quarter of that of
  // the layers without a window, which have the most of long sequences: in the last lanes of the groups, and
  // where a slot holds no whole number of a group's layers. If that cannot be, as many as leave the least.
  // dtype: of the activations.
  CacheShape(const StateDeclarations& states, int block_size, DType dtype);
  CacheShape() = default;

  const StateSpec& spec_of(std::size_t layer) const { return groups[lanes[places[layer].lane].group]; }
  // Of a slot of fixed states; 0: no layer has one.
  std::size_t state_bytes() const;
  std::int64_t token_bytes() const { return slot_bytes * num_slots; }  // of a block, for each token
  // Of the memory, what no layer uses.
  double idle_share() const {
    return 1 - static_cast<double>(used_bytes) /
                   static_cast<double>(token_bytes() * static_cast<std::int64_t>(lanes.size()));
  }
};

}  // namespace quire
