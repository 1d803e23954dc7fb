#pragma once

#include <span>
#include <vector>

#include "ops/ops.h"
#include "runner/runtime_config.h"

namespace quire {

// Keys and values of all blocks on one rank: on the device, and of those swapped out in host memory.
class CacheMemory {
 public:
  CacheMemory(Backend& backend, const RuntimeConfig& config);

  std::span<const KvCacheLayer> layers() const { return model_layers_; }  // by StateId
  std::span<const int> lane_of() const { return lane_of_; }               // by StateId

  // Pairs i32 [n, 2] of blocks: saved to host memory, copied within the cache, restored, in this order.
  void copy_blocks(const Tensor& saves, const Tensor& copies, const Tensor& restores);
  // Fills blocks with NaN, with the next copies and behind their saves. For tests.
  void poison(std::vector<BlockId> blocks) { to_poison_ = std::move(blocks); }

 private:
  struct Blocks {
    Buffer memory;  // [layers of a block][blocks][kv heads][keys, values][block_size][head_dim]
    std::vector<KvCacheLayer> layers = {};  // of a block
  };

  Blocks allocate(int num_blocks, MemoryKind kind) const;

  Backend& backend_;
  const RuntimeConfig& config_;
  Blocks device_;
  Blocks host_;  // swap space; none: no layers
  std::vector<KvCacheLayer> model_layers_;
  std::vector<int> lane_of_;
  std::vector<BlockId> to_poison_;
};

}  // namespace quire
