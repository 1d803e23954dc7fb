#pragma once

#include <cstdint>
#include <string>

#include "layers/linear.h"

namespace quire {

struct ShortConvOptions {
  std::int64_t hidden_size = 0;
  int width = 0;      // tokens that the convolution sees, its own included
  bool bias = false;  // of the convolution and of both projections
};

// A gated short convolution (Liquid AI, LFM2, 2025): out(c * conv(b * x)), where b, c and x are projections
// of a token and conv is depthwise; its channels are spread over the ranks. PREFIX is "model.layers.3.conv".
class ShortConv {
 public:
  ShortConv(const LoadContext& context, const std::string& prefix, const ShortConvOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x, const Step& step) const;

 private:
  Backend& backend_;
  ColumnParallelLinear in_proj_;  // b, x, c
  RowParallelLinear out_proj_;
  ConvParams conv_;
  FixedStateId state_;
  Tensor bxc_, gated_, out_;  // activations
};

}  // namespace quire
