#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ops/ops.h"
#include "runner/runtime_config.h"

namespace quire {

// What a ModelRunner allocates on its backend, in bytes, for one rank, and what else shows on the way.
struct MemoryPlan {
  std::vector<LinearWeights> matrices;  // their sizes as packed, and no values
  std::vector<ExpertWeights> experts;   // the same
  std::size_t weights = 0;              // all of them
  std::size_t kv_cache = 0;
  std::size_t workspace = 0;    // norms, biases, rotary tables, activations, block tables
  std::size_t connections = 0;  // of ranks with each other
  std::size_t host = 0;         // pinned, for steps on their way to the device and back

  std::size_t swap_space = 0;        // host memory, too; beside the total
  bool rounds_inputs = false;        // some products round theirs
  bool leaves_out_rounding = false;  // some products would, were it not for weight_only

  std::size_t total() const { return weights + kv_cache + workspace + connections + host; }
};

// What the model's layers declare on this rank; `config` is without its cache. No weight is read.
StateDeclarations declare_states(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                                 const ModelConfig& model);

// The tensors whose matrices become codes where the model is loaded with `quantization`, and how many columns
// a layer has of each. No matrix is read.
std::map<std::string, std::int64_t> quantized_tensors(Backend& backend, Communicator& comm,
                                                      const ModelConfig& model, WeightSource& weights,
                                                      Quantization quantization, bool quantize_head);

// Builds the runner on a backend that counts and allocates nothing; no weight is read. formats: the weights
// where they are quantised, of which the formats alone are looked at.
MemoryPlan plan_memory(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                       const ModelConfig& model, WeightSource* formats = nullptr);

}  // namespace quire
