#pragma once

#include <string>

#include "layers/linear.h"

namespace quire {

// down(silu(gate(x)) * up(x)) (Shazeer, "GLU variants improve transformer", 2020); PREFIX is
// "model.layers.3.mlp".
class GatedMlp {
 public:
  GatedMlp(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
           std::int64_t intermediate_size, bool has_bias = false);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x) const;

 private:
  ColumnParallelLinear gate_up_proj_;
  RowParallelLinear down_proj_;
  Tensor gate_up_, gated_, out_;  // activations
};

// down(gelu(up(x))), both with biases; PREFIX is "model.layers.3.mlp".
class GeluMlp {
 public:
  GeluMlp(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
          std::int64_t intermediate_size);

  // As GatedMlp's.
  Tensor forward(const Tensor& x) const;

 private:
  Backend& backend_;
  ColumnParallelLinear up_proj_;
  RowParallelLinear down_proj_;
  Tensor up_, out_;  // activations
};

}  // namespace quire
