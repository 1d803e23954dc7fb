#pragma once

#include <algorithm>

#include "models/model.h"
#include "quire/engine_config.h"
#include "runner/cache_shape.h"

namespace quire {

// An EngineConfig with every "auto" decided for one model: what the engine runs with, fixed from here on.
struct RuntimeConfig : CacheSizes {
  ModelSpec spec;
  DType dtype = DType::kF32;
  Quantization quantization = Quantization::kNone;
  bool quantize_head = false;
  bool weight_only = false;
  int max_num_seqs = 0;
  int max_num_batched_tokens = 0;
  int max_model_len = 0;
  CachePolicy cache_policy;
  CacheShape cache;
  int max_logprobs = 0;              // of a position
  int num_heads = 0;                 // on one rank
  std::size_t connection_bytes = 0;  // of the device's memory, with which ranks are connected
  bool use_graphs = false;

  int block_size() const { return cache.layout.block_size; }
  // Keys and values of one block, over its layers on one rank.
  std::size_t block_bytes() const { return static_cast<std::size_t>(cache.token_bytes() * block_size()); }
  // Of all blocks and slots on one rank.
  std::size_t cache_bytes() const {
    return block_bytes() * static_cast<std::size_t>(num_blocks) +
           cache.state_bytes() * static_cast<std::size_t>(num_state_slots);
  }
  std::size_t swap_bytes() const {
    return block_bytes() * static_cast<std::size_t>(num_host_blocks) +
           cache.state_bytes() * static_cast<std::size_t>(num_host_state_slots);
  }
  // That the whole cache holds in every lane.
  std::int64_t cached_tokens() const {
    return std::int64_t{num_blocks} / cache.layout.num_lanes() * block_size();
  }
  int max_table_rows() const { return cache.layout.rows_for(max_model_len); }
  // The most blocks that a sequence holds while it grows to `length` tokens: those that its windows cover,
  // and those of one step in flight.
  std::int64_t max_blocks_held(int length) const {
    return cache.layout.blocks_held(length, max_num_batched_tokens);
  }
  // Positions of one step that may want logits.
  int max_output_rows() const { return std::min(max_num_seqs, max_num_batched_tokens); }
};

// Error that names the flag and what would be right. formats: as plan_memory's.
RuntimeConfig resolve_config(const EngineConfig& config, const ModelConfig& model, Backend& backend,
                             Communicator& comm, WeightSource* formats = nullptr);

}  // namespace quire
