#pragma once

#include <string>

#include "layers/linear.h"

namespace quire {

struct MlpOptions {
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  bool bias = false;
  bool wide_result = false;  // in float32
};

// down(activation(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer", 2020), or without a gate
// down(activation(up(x))); PREFIX is "model.layers.3.mlp".
class Mlp {
 public:
  Mlp(const LoadContext& context, const std::string& prefix, const MlpOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], of x's type or float32, this rank's part of a
  // sum, lasts until the next layer's.
  Tensor forward(const Tensor& x) const;

 private:
  Backend& backend_;
  MlpOptions options_;
  ColumnParallelLinear up_proj_;  // the gate above it, where there is one
  RowParallelLinear down_proj_;
  Tensor gate_up_, activated_, out_;  // activations
};

}  // namespace quire
