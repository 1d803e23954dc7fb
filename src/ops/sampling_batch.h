#pragma once

#include "base/tensor.h"

namespace quire {

// How each row of logits becomes a token: one entry a row, on the backend's device.
struct SamplingBatch {
  int num_rows = 0;
  Tensor temperature;  // f32 [num_rows], 0: greedy
  Tensor top_k;        // i32 [num_rows], 0: all
  Tensor top_p;        // f32 [num_rows]
  Tensor min_p;        // f32 [num_rows]
  Tensor seeds;        // i64 [num_rows], the bits of an unsigned seed
  Tensor positions;  // i32 [num_rows] of the sampled token in its sequence: the counter of its random numbers
  Tensor seats;      // i32 [num_rows] entry of last_tokens that the token is also written to
  Tensor workspace;  // u8 [Ops::sampling_workspace_bytes], or undefined where that is 0

  SamplingBatch rows(std::int64_t begin, std::int64_t count) const {
    const auto part = [&](const Tensor& entries) { return entries.rows(begin, count); };
    return {static_cast<int>(count), part(temperature), part(top_k), part(top_p), part(min_p), part(seeds),
            part(positions),         part(seats),       workspace};
  }
};

}  // namespace quire
