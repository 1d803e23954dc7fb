#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor.h"
#include "ops/weight_source.h"

namespace quire {

// Routed experts: of many gated MLPs a token goes through a few (Shazeer et al., "Outrageously large neural
// networks", 2017). Sizes are one rank's.
struct ExpertShape {
  int num_experts = 0;
  int top_k = 0;  // experts of a token
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  int max_num_tokens = 0;  // of one step
};

// One expert's matrices: gate and up [intermediate_size, hidden_size], down [hidden_size, intermediate_size].
struct ExpertParts {
  WeightGroup gate, up, down;
};

// A layer's experts in the form their backend multiplies with; the layout is the backend's own.
class ExpertWeights {
 public:
  ExpertWeights(const ExpertShape& shape, std::size_t bytes) : shape_(shape), bytes_(bytes) {}
  virtual ~ExpertWeights() = default;

  const ExpertShape& shape() const { return shape_; }
  std::size_t bytes() const { return bytes_; }

 private:
  ExpertShape shape_;
  std::size_t bytes_;
};

// Which experts the tokens go through, and what each one's result is multiplied with.
struct ExpertRouting {
  Tensor experts;  // i32 [tokens, top_k]
  Tensor weights;  // f32 [tokens, top_k]
};

}  // namespace quire
