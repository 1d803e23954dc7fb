#pragma once

#include <memory>
#include <optional>
#include <string>

#include "layers/mlp.h"

namespace quire {

struct ExpertOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;  // of one expert
  int num_experts = 0;
  int top_k = 0;
  RouterOptions router = {};    // all but its tensors
  bool selection_bias = false;  // it has one: PREFIX.gate.e_score_correction_bias
  bool scaled = false;          // and scales of experts: PREFIX.gate.scales
  // Of one more expert that every token has, times the sigmoid of a product of its own; 0: there is none.
  std::int64_t shared_size = 0;
  Activation activation = Activation::kSilu;
  bool bias = false;  // of the router and of each expert's projections
};

// Many gated MLPs, of which a router picks top_k for each token (Shazeer et al., 2017); PREFIX is
// "model.layers.3.mlp". Every rank has its share of each expert's rows.
class Experts {
 public:
  Experts(const LoadContext& context, const std::string& prefix, const ExpertOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x) const { return forward(x, x); }
  Tensor forward(const Tensor& x, const Tensor& routed_by) const;  // which the router reads in place of x

 private:
  Backend& backend_;
  RouterOptions options_;
  std::unique_ptr<LinearWeights> router_;
  Tensor router_bias_;
  std::unique_ptr<ExpertWeights> weights_;
  std::optional<Mlp> shared_;
  std::optional<Product> shared_gate_;
  ExpertRouting routing_;
  Tensor logits_, workspace_, gate_, out_;  // activations
};

}  // namespace quire
