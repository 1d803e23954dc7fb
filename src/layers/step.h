#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "ops/attention_batch.h"
#include "ops/state_batch.h"

namespace quire {

// What a layer keeps of every token of a sequence, on one rank: a key and a value of each KV head. Layers of
// equal specs form a group; a step is planned once for each.
struct StateSpec {
  int num_heads = 0;  // of queries
  int num_kv_heads = 0;
  int head_dim = 0;
  int window = 0;  // positions a token attends to, its own included; 0: all up to its own
  CacheCode code = CacheCode::kNone;

  // Of a token's key and value in one KV head, with their scales; dtype: of the activations.
  std::int64_t head_bytes(DType dtype) const {
    return code == CacheCode::kNone ? 2 * head_dim * static_cast<std::int64_t>(size_of(dtype))
                                    : 2 * (head_dim + static_cast<std::int64_t>(sizeof(float)));
  }

  // Of a token in all KV heads.
  std::int64_t token_bytes(DType dtype) const { return num_kv_heads * head_bytes(dtype); }

  bool operator==(const StateSpec&) const = default;
};

// A layer's state among those of its model, in the order in which they were declared.
using StateId = int;
// The same among fixed states: what a layer keeps of a sequence as a whole, f32 values that each token
// changes.
using FixedStateId = int;

// Which layers keep codes.
struct CachePolicy {
  CacheCode code = CacheCode::kNone;
  bool skips_windows = false;     // none of those that attend to a window
  std::vector<int> skipped = {};  // nor these, numbered among all layers of the model

  CacheCode code_of(int layer, int window) const {
    const bool skips = (skips_windows && window != 0) || std::ranges::find(skipped, layer) != skipped.end();
    return skips ? CacheCode::kNone : code;
  }
};

// What the layers of a model declare as they are constructed.
class StateDeclarations {
 public:
  explicit StateDeclarations(CachePolicy policy = {}) : policy_(std::move(policy)) {}

  // What follows is declared by this layer of the model.
  void begin_layer(int layer) { layer_ = layer; }
  // The policy says what of its codes.
  StateId declare(StateSpec spec) {
    spec.code = policy_.code_of(layer_, spec.window);
    const auto found = std::ranges::find(groups_, spec);
    group_of_.push_back(static_cast<int>(found - groups_.begin()));
    if (found == groups_.end()) groups_.push_back(spec);
    return static_cast<StateId>(group_of_.size()) - 1;
  }
  // shape: of the values of one sequence on one rank.
  FixedStateId declare_fixed(std::vector<std::int64_t> shape) {
    fixed_.push_back(std::move(shape));
    return static_cast<FixedStateId>(fixed_.size()) - 1;
  }
  std::span<const std::vector<std::int64_t>> fixed() const { return fixed_; }  // by FixedStateId
  std::span<const StateSpec> groups() const { return groups_; }
  const StateSpec& spec_of(StateId layer) const { return groups_[group_of_[layer]]; }
  std::span<const int> group_of() const { return group_of_; }  // by StateId

 private:
  CachePolicy policy_;
  int layer_ = -1;
  std::vector<StateSpec> groups_;
  std::vector<int> group_of_;
  std::vector<std::vector<std::int64_t>> fixed_;
};

// One step, as every layer sees it.
struct Step {
  Tensor token_ids;                           // i32 [tokens]
  Tensor positions;                           // i32 [tokens]
  std::span<const AttentionBatch> batches;    // by lane of the cache
  std::span<const KvCacheLayer> caches;       // by StateId
  std::span<const int> lane_of;               // by StateId
  std::span<const Tensor> fixed_states = {};  // by FixedStateId: f32 [slots, its shape], strided by slots
  StateBatch state_batch = {};                // of all of them
};

}  // namespace quire
