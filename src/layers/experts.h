#pragma once

#include <memory>
#include <string>

#include "layers/linear.h"

namespace quire {

struct ExpertOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of one expert
  int num_experts = 0;
  int top_k = 0;
  bool normalize = true;  // the weights of a token's experts add up to 1
};

// Many gated MLPs, of which a router picks top_k for each token (Shazeer et al., 2017); PREFIX is
// "model.layers.3.mlp". Every rank has its share of each expert's rows.
class Experts {
 public:
  Experts(const LoadContext& context, const std::string& prefix, const ExpertOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x) const;

 private:
  Backend& backend_;
  bool normalize_;
  std::unique_ptr<LinearWeights> router_;
  std::unique_ptr<ExpertWeights> weights_;
  ExpertRouting routing_;
  Tensor logits_, workspace_, out_;  // activations
};

}  // namespace quire
