#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layers/load_context.h"

namespace quire {

// Rows [begin, begin + count) of the checkpoint's matrix PREFIX [out_features, in_features] (and
// PREFIX.bias).
struct ColumnShard {
  std::string prefix;
  std::int64_t out_features = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// This rank's equal share of the rows.
ColumnShard even_shard(std::string prefix, std::int64_t out_features, const Communicator& comm);

// Several projections of one input, fused: each rank computes its rows of each of them, side by side.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(const LoadContext& context, const std::vector<ColumnShard>& parts,
                       std::int64_t in_features, bool has_bias = false);

  std::int64_t out_features() const { return weights_->out_features(); }
  void forward(const Tensor& out,
               const Tensor& x) const;  // out [tokens, out_features()], x [tokens, in_features]
  // Of a gate and what it gates: out [tokens, out_features() / 2] = activation(gate) * up; gate_up [tokens,
  // out_features()] may be written on the way.
  void forward_gated(const Tensor& out, const Tensor& x, const Tensor& gate_up, Activation activation) const;

 private:
  Backend& backend_;
  std::unique_ptr<LinearWeights> weights_;
  Tensor bias_;
};

// A projection whose input is spread over the ranks: each multiplies its columns. The result is this rank's
// part: the sum over the ranks is the projection.
class RowParallelLinear {
 public:
  RowParallelLinear(const LoadContext& context, const std::string& prefix, std::int64_t out_features,
                    std::int64_t in_features, bool has_bias = false);

  void forward(const Tensor& out,
               const Tensor& x) const;  // out [tokens, out_features], x [tokens, in_features / ranks]

 private:
  Backend& backend_;
  std::unique_ptr<LinearWeights> weights_;
  Tensor bias_;  // on rank 0 only, so that it is added once
};

}  // namespace quire
