#pragma once

#include <cstdint>
#include <string>

#include "layers/load_context.h"

namespace quire {

enum class NormKind : std::uint8_t {
  kNone,  // only the dtype changes
  kRms,
  kLayer
};

struct NormOptions {
  NormKind kind = NormKind::kRms;
  bool bias = true;  // of LayerNorm
  float eps = 0;
  float update_scale = 1;   // of what is added to the residual stream
  float sum_scale = 1;      // of the residual stream once that is added
  float output_scale = 1;   // of the normed values
  float weight_offset = 0;  // added to the weights: 1 where a file holds what is to be added to one
};

// What a block adds to the residual stream.
struct Update {
  Tensor values;       // [tokens, hidden_size]; undefined: nothing
  bool whole = false;  // each rank has it as a whole; or its part of a sum
};

// The norm of the residual stream, if any; PREFIX is "model.layers.3.input_layernorm".
class Norm {
 public:
  Norm(const LoadContext& context, const std::string& prefix, std::int64_t hidden_size,
       const NormOptions& options);

  // residual [tokens, hidden_size] += update_scale * update, of all ranks; out [tokens, hidden_size] =
  // residual, normed. The update may be written.
  void forward(const Tensor& out, const Tensor& residual, const Update& update = {}) const;
  // The norm of an update, of which each rank has a part; with NormKind::kNone the part.
  Update forward_sum(const Tensor& part) const;

 private:
  Backend& backend_;
  Communicator& comm_;
  NormParams params_;
  float update_scale_;
};

// RMSNorm of q, or of k, over the heads of all ranks; PREFIX is "model.layers.3.self_attn.q_norm".
class HeadsNorm {
 public:
  // A rank has `columns` of all `size`; where they are fewer than columns * ranks, neighbouring ranks have
  // the same.
  HeadsNorm(const LoadContext& context, const std::string& prefix, std::int64_t size, std::int64_t columns,
            const NormOptions& options);

  void forward(const Tensor& x) const;  // x [tokens, columns], in place

 private:
  Backend& backend_;
  Communicator& comm_;
  NormParams params_;
  Tensor whole_;  // activation, among several ranks: the columns of all
  Tensor zeros_;  // a row
};

}  // namespace quire
