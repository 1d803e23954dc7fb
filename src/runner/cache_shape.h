#pragma once

#include <vector>

#include "kvcache/cache_layout.h"
#include "layers/step.h"

namespace quire {

// Where the layers of a model lie in the blocks of its KV cache. All blocks are equal and belong to whichever
// lane takes them.
struct CacheShape {
  struct Lane {
    int group = 0;       // of StateDeclarations
    int num_layers = 0;  // at most layers_per_block
  };
  // Of a layer: its lane, and which layer of a block it is.
  struct Place {
    int lane = 0;
    int index = 0;
  };

  CacheLayout layout;
  int layers_per_block = 0;
  std::vector<Lane> lanes;    // by group
  std::vector<Place> places;  // by StateId

  // Blocks hold as many layers as they can while at most a twentieth of the memory lies idle, where the last
  // lane of a group has fewer.
  CacheShape(const StateDeclarations& states, int block_size);
  CacheShape() = default;

  // Of the memory, what no layer uses.
  double idle_share() const {
    return 1 - static_cast<double>(places.size()) / static_cast<double>(lanes.size()) / layers_per_block;
  }
};

}  // namespace quire
