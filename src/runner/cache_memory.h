#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "ops/ops.h"
#include "runner/batch_builder.h"
#include "runner/runtime_config.h"

namespace quire {

// What is kept of sequences on one rank, in blocks on the device and, of preempted sequences, in host memory.
class BlockMemory {
 public:
  // The saves come first, then the copies within the device's blocks, then the restores.
  void copy(const BlockCopies& copies);
  // Fills blocks with NaN, with the next copies and behind their saves. For tests.
  void poison(std::vector<BlockId> blocks) { to_poison_ = std::move(blocks); }

 protected:
  BlockMemory(Backend& backend, int num_slots, std::size_t block_bytes, int num_blocks, int num_host_blocks);

  Tensor device_, host_;  // u8 [slots, blocks, bytes of a slot]; undefined: there are no blocks

 private:
  void fill_with_nan(BlockId block);

  Backend& backend_;
  Buffer device_memory_, host_memory_;
  std::vector<BlockId> to_poison_;
};

// Keys and values of all blocks. Of a block: [slots], in each of its layers [kv heads]: keys, then values
// [block_size][head_dim], then of codes the keys' scales and the values' f32 [block_size].
class CacheMemory : public BlockMemory {
 public:
  CacheMemory(Backend& backend, const RuntimeConfig& config);

  std::span<const KvCacheLayer> layers() const { return model_layers_; }  // by StateId
  std::span<const int> lane_of() const { return lane_of_; }               // by StateId

 private:
  KvCacheLayer layer_at(const CacheShape::Place& place, const StateSpec& spec) const;

  const RuntimeConfig& config_;
  std::vector<KvCacheLayer> model_layers_;
  std::vector<int> lane_of_;
};

// Fixed states. A block, which elsewhere is a slot of fixed states, holds those of all layers of a sequence,
// one behind the other.
class StateMemory : public BlockMemory {
 public:
  StateMemory(Backend& backend, const RuntimeConfig& config);

  std::span<const Tensor> states() const { return states_; }  // by FixedStateId: f32 [blocks, its shape]

 private:
  std::vector<Tensor> states_;
};

}  // namespace quire
