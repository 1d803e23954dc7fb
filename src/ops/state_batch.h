#pragma once

#include "base/tensor.h"

namespace quire {

// Which tokens of a step belong to which sequence, and in which slots the fixed states of those lie: what a
// layer keeps of a sequence as a whole, f32 [slots, …]. All tensors are int32 on the backend's device.
// Sequence i owns the rows [query_starts[i], query_starts[i + 1]) of the step.
struct StateBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  Tensor query_starts;  // [num_sequences + 1]
  Tensor from;          // [num_sequences] slot of the state before the first of these tokens; -1: zeros
  Tensor to;  // [num_sequences] slot that gets the state behind the last one, and may be `from`; -1: padding,
              // of which nothing is read or written. No slot is `to` of one and named by another.
};

// Most columns of a key of the gated delta rule: kernels hold whole columns of its state near.
inline constexpr int kMaxDeltaKeyDim = 256;

}  // namespace quire
