#pragma once

#include <optional>
#include <span>
#include <vector>

#include "ops/ops.h"
#include "runner/runtime_config.h"

namespace quire {

// Bytes that are NaN in every type. bytes: u8 [slots, blocks, bytes of a slot]. For tests.
void fill_with_nan(Backend& backend, const Tensor& bytes, const std::vector<BlockId>& blocks);

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
  // Of a block: [slots], in each of its layers [kv heads]: keys, then values [block_size][head_dim], then of
  // codes the keys' scales and the values' f32 [block_size].
  struct Blocks {
    Blocks(Backend& backend, const RuntimeConfig& config, int num_blocks, MemoryKind kind);

    Buffer memory;
    Tensor bytes;  // u8 [slots, blocks, bytes of a slot]
  };

  KvCacheLayer layer_at(const CacheShape::Place& place, const StateSpec& spec) const;

  Backend& backend_;
  const RuntimeConfig& config_;
  Blocks device_;
  std::optional<Blocks> host_;  // swap space
  std::vector<KvCacheLayer> model_layers_;
  std::vector<int> lane_of_;
  std::vector<BlockId> to_poison_;
};

}  // namespace quire
