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
  bool stays_plain = false;  // where it is, although others are made into codes
};

// This rank's equal share of the rows.
ColumnShard even_shard(std::string prefix, std::int64_t out_features, const Communicator& comm);

// This rank's equal share of a vector, in float32 on the device.
Tensor load_share(const LoadContext& context, const std::string& name, std::int64_t size);

// PREFIX.bias of the parts, those elements of each, one behind the other. of_sum: of a sum over the ranks, to
// which rank 0 adds them; others have none.
std::vector<float> load_biases(const LoadContext& context, const std::vector<ColumnShard>& parts,
                               bool of_sum = false);

// This rank's equal share of the columns of the matrix PREFIX [out_features, in_features].
WeightGroup take_row_shard(const LoadContext& context, const std::string& prefix, std::int64_t out_features,
                           std::int64_t in_features);

// The product with some matrices of one input, one below the other. Those of one format are one to the
// backend.
class Product {
 public:
  // bias f32 [out_features], or none.
  Product(const LoadContext& context, std::span<const WeightGroup> parts, const std::vector<float>& bias);

  std::int64_t out_features() const { return out_features_; }
  void forward(const Tensor& out,
               const Tensor& x) const;  // out [tokens, out_features()], x [tokens, in_features]
  // Of a gate and what it gates: out [tokens, out_features() / 2] = activation(gate) * up; gate_up [tokens,
  // out_features()] may be written on the way.
  void forward_gated(const Tensor& out, const Tensor& x, const Tensor& gate_up, Activation activation) const;

 private:
  struct Matrix {
    std::unique_ptr<LinearWeights> weights;
    Tensor bias;
    Tensor order;  // i32 [in_features]: of x's columns in the codes; or undefined
  };
  Tensor ordered(const Matrix& matrix, const Tensor& x) const;

  Backend& backend_;
  std::int64_t out_features_ = 0;
  std::vector<Matrix> matrices_;
  Tensor ordered_;  // activation: x's columns in another order
};

// Several projections of one input, fused: each rank computes its rows of each of them, side by side.
class ColumnParallelLinear : public Product {
 public:
  ColumnParallelLinear(const LoadContext& context, const std::vector<ColumnShard>& parts,
                       std::int64_t in_features, bool has_bias = false);
};

// A projection whose input is spread over the ranks: each multiplies its columns, x [tokens, in_features /
// ranks]. The result is this rank's part: the sum over the ranks is the projection.
class RowParallelLinear : public Product {
 public:
  RowParallelLinear(const LoadContext& context, const std::string& prefix, std::int64_t out_features,
                    std::int64_t in_features, bool has_bias = false);
};

}  // namespace quire
