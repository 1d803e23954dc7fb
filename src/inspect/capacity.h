#pragma once

#include <string>
#include <vector>

#include "quire/engine_config.h"
#include "runner/memory_plan.h"

namespace quire {

// What an engine takes as it is configured, and what some amount of memory could hold.
struct Capacity {
  struct Row {
    int length = 0;              // tokens of a sequence, prompt and output
    std::int64_t sequences = 0;  // of that length that the memory has room for
  };

  // Layers that hold equally much of a sequence.
  struct Group {
    int num_layers = 0;
    int window = 0;               // tokens; 0: all
    int num_lanes = 0;            // blocks for the same tokens in all of them
    std::int64_t bytes_held = 0;  // of a sequence as long as the context
  };

  std::string architecture;
  std::string device;
  int ranks = 1;  // what follows is of each
  RuntimeConfig config;
  MemoryPlan plan;
  std::size_t memory = 0;    // asked about
  std::size_t kv_cache = 0;  // what is left of it for keys and values, in whole blocks
  std::int64_t tokens = 0;   // of a KV cache of that size
  std::vector<Row> rows;

  std::size_t kv_bytes_per_token() const;  // of a token that every layer holds
  std::vector<Group> groups() const;
  // Of fixed states; 0: the model's layers have none.
  std::size_t state_slots_bytes() const {
    return config.cache.state_bytes() * static_cast<std::size_t>(config.num_state_slots);
  }
  bool fits() const { return plan.total() <= memory; }  // as configured
};

// memory: bytes of a rank; 0: its share of this machine's. No weight is loaded. formats: as plan_memory's.
// Error as when the engine starts.
Capacity plan_capacity(const EngineConfig& config, const ModelConfig& model, std::size_t memory,
                       WeightSource* formats = nullptr);

}  // namespace quire
