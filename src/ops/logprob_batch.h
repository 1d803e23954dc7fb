#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor.h"

namespace quire {

inline constexpr int kMaxTopLogprobs = 512;  // of one row

// Which log-probabilities are wanted, on the backend's device.
struct LogprobBatch {
  int num_rows = 0;
  int num_top = 0;  // most likely tokens of each row: at most kMaxTopLogprobs, and the vocabulary
  Tensor rows;      // i32 [num_rows] of the logits; undefined: the first num_rows
  Tensor tokens;    // i32 [rows of the logits]: the token of each row
};

// The answer: in each row the token, then the most likely ones in order.
struct LogprobRows {
  Tensor ids;       // i32 [num_rows, 1 + num_top]
  Tensor logprobs;  // f32 [num_rows, 1 + num_top]
  Tensor ranks;     // i32 [num_rows] of the token: 1 and the number of tokens that are more likely

  static std::size_t bytes(std::int64_t num_rows, int num_top) {
    return static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(2 * (1 + num_top) + 1) * 4;
  }
  // All three in bytes() of memory, so that one copy moves them.
  static LogprobRows at(void* data, std::int64_t num_rows, int num_top, DeviceKind device) {
    const std::int64_t cols = 1 + num_top;
    auto* ids = static_cast<std::int32_t*>(data);
    return {.ids = Tensor(ids, DType::kI32, {num_rows, cols}, device),
            .logprobs = Tensor(ids + num_rows * cols, DType::kF32, {num_rows, cols}, device),
            .ranks = Tensor(ids + 2 * num_rows * cols, DType::kI32, {num_rows}, device)};
  }
};

}  // namespace quire
