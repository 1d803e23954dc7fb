#pragma once

#include <cstdint>
#include <string>

#include "layers/linear.h"

namespace quire {

struct DeltaNetOptions {
  std::int64_t hidden_size = 0;
  int num_key_heads = 0;    // over all ranks
  int num_value_heads = 0;  // over all ranks, a multiple of num_key_heads
  int key_dim = 0;          // of a head
  int value_dim = 0;        // of a head
  int conv_width = 0;       // tokens that the convolution sees, a token itself included
  float norm_eps = 0;

  // Of all heads.
  std::int64_t keys() const { return std::int64_t{num_key_heads} * key_dim; }
  std::int64_t values() const { return std::int64_t{num_value_heads} * value_dim; }
};

// Linear attention by the gated delta rule (Yang et al., "Gated delta networks", 2025): queries, keys and
// values go through a causal convolution with SiLU and make and read a state of fixed size; an RMSNorm over
// each head, gated by another projection, is before the last product. PREFIX is "model.layers.3.linear_attn".
// Value heads are spread over the ranks with the key heads that they share.
class GatedDeltaNet {
 public:
  GatedDeltaNet(const LoadContext& context, const std::string& prefix, const DeltaNetOptions& options);

  // x [tokens, hidden_size]; the result [tokens, hidden_size], this rank's part of a sum, lasts until the
  // next layer's.
  Tensor forward(const Tensor& x, const Step& step) const;

 private:
  Backend& backend_;
  DeltaNet net_;  // all but what is a step's
  FixedStateId conv_state_, state_;
  ColumnParallelLinear in_proj_;  // q, k, v, the gate of the output, b, a
  RowParallelLinear out_proj_;
  Tensor projected_, normed_, out_;  // activations, as net_.mixed and net_.heads are
};

}  // namespace quire
