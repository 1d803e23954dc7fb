#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor.h"
#include "ops/activation.h"
#include "ops/weight_source.h"

namespace quire {

// Routed experts: of many gated MLPs a token goes through a few (Shazeer et al., "Outrageously large neural
// networks", 2017). Sizes are one rank's.
struct ExpertShape {
  int num_experts = 0;
  int top_k = 0;  // experts of a token
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  int max_num_tokens = 0;                     // of one step
  Activation activation = Activation::kSilu;  // of gates
};

// One expert's matrices: gate and up [intermediate_size, hidden_size], down [hidden_size, intermediate_size].
struct ExpertParts {
  WeightGroup gate, up, down;
};

// What is added to the experts' products; undefined: nothing.
struct ExpertBiases {
  Tensor gate_up;  // f32 [num_experts * 2 * intermediate_size]: each one's gate's, then up's
  Tensor down;     // f32 [num_experts * hidden_size]
};

// A layer's experts in the form their backend multiplies with; the layout is the backend's own.
class ExpertWeights {
 public:
  ExpertWeights(const ExpertShape& shape, std::size_t bytes) : shape_(shape), bytes_(bytes) {}
  virtual ~ExpertWeights() = default;

  const ExpertShape& shape() const { return shape_; }
  std::size_t bytes() const { return bytes_; }
  const ExpertBiases& biases() const { return biases_; }
  void set_biases(const ExpertBiases& biases) { biases_ = biases; }  // on the weights' device

 private:
  ExpertShape shape_;
  std::size_t bytes_;
  ExpertBiases biases_;
};

// How a router's logits choose experts, and become their weights.
struct RouterOptions {
  bool sigmoid = false;        // a score is the sigmoid of its logit; else scores are their softmax
  bool normalize = true;       // the weights are the chosen scores divided by their sum
  float sum_offset = 0;        // added to that sum; only of sigmoids
  float scale = 1;             // of the weights
  Tensor selection_bias = {};  // f32 [num_experts]: scores are compared with it added; only of sigmoids
  Tensor expert_scales = {};   // f32 [num_experts], or undefined: of each expert's weights
};

// Which experts the tokens go through, and what each one's result is multiplied with.
struct ExpertRouting {
  Tensor experts;  // i32 [tokens, top_k]
  Tensor weights;  // f32 [tokens, top_k]
};

}  // namespace quire
