#pragma once

#include <string>

#include "layers/load_context.h"

namespace quire {

// RMSNorm (Zhang and Sennrich, 2019) over the residual stream.
class RmsNorm {
 public:
  RmsNorm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size, float eps);

  void forward(const Tensor& out, const Tensor& residual) const;  // both [tokens, hidden_size]
  // residual += update first.
  void forward(const Tensor& out, const Tensor& residual, const Tensor& update) const;

 private:
  Backend& backend_;
  Tensor weight_;
  float eps_;
};

}  // namespace quire
