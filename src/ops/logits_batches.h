#pragma once

#include <cstddef>
#include <cstdint>

#include "base/tensor.h"

// What is done to a step's rows of logits: they are changed, tokens are drawn from them, and their
// log-probabilities told. All tensors lie on the backend's device.
namespace quire {

// What is known of one token for one seat, 16 bits: the flags, and below them how often it is in the output.
namespace token_state {
inline constexpr std::uint16_t kInPrompt = 0x8000;
inline constexpr std::uint16_t kForbidden = 0x4000;
inline constexpr std::uint16_t kMaxCount = 0x3FFF;  // more often counts as this
}  // namespace token_state

// Whether a changed row looks at its seat's token states.
enum class StateUse : std::int32_t { kNone, kRead, kCountLastAndRead };

// How rows of logits are changed before tokens are drawn from them: one entry for each changed row, on the
// backend's device. See Backend::adjust_logits.
struct LogitsAdjustment {
  int num_rows = 0;
  Tensor rows;         // i32 [num_rows] of the logits, each once
  Tensor seats;        // i32 [num_rows] rows of token_states and entries of last_tokens
  Tensor state_uses;   // i32 [num_rows] StateUse
  Tensor repetition;   // f32 [num_rows] over 0; 1: none
  Tensor frequency;    // f32 [num_rows]
  Tensor presence;     // f32 [num_rows]
  Tensor bias_starts;  // i32 [num_rows + 1] ranges of bias_ids and bias_values
  Tensor bias_ids;     // i32, in one row each at most once
  Tensor bias_values;  // f32
  Tensor mask_starts;  // i32 [num_rows + 1] ranges of masks
  Tensor masks;  // i32 [n, 2]: a token, and the one that must be the seat's last for it to count; -1: any
  Tensor token_states;  // i16 [seats, vocab or more]: the bits of token_state
  // Bit i % 32 of word i / 32 says whether token i is allowed.
  Tensor bitmask_rows = {};  // i32 [num_rows] of bitmasks; -1: all tokens are; undefined: in all rows
  Tensor bitmasks = {};      // i32 [n, (vocab + 31) / 32], where bitmask_rows is defined
};

// How each row of logits becomes a token: one entry a row, on the backend's device.
struct SamplingBatch {
  int num_rows = 0;
  Tensor temperature;  // f32 [num_rows], 0: greedy
  Tensor top_k;        // i32 [num_rows], 0: all
  Tensor top_p;        // f32 [num_rows]
  Tensor min_p;        // f32 [num_rows]
  Tensor seeds;        // i64 [num_rows], the bits of an unsigned seed
  Tensor positions;  // i32 [num_rows] of the sampled token in its sequence: the counter of its random numbers
  Tensor seats;      // i32 [num_rows] entry of last_tokens, each row's own, that the token is also written to
  Tensor workspace;  // u8 [Backend::sampling_workspace_bytes], or undefined where that is 0

  SamplingBatch rows(std::int64_t begin, std::int64_t count) const {
    const auto part = [&](const Tensor& entries) { return entries.rows(begin, count); };
    return {static_cast<int>(count), part(temperature), part(top_k), part(top_p), part(min_p), part(seeds),
            part(positions),         part(seats),       workspace};
  }
};

inline constexpr int kMaxTopLogprobs = 512;    // of one row, on a device; the host finds more of them
inline constexpr int kMaxNamedLogprobs = 128;  // of one row

// Which log-probabilities are wanted, on the backend's device.
struct LogprobBatch {
  int num_rows = 0;
  int num_top = 0;  // most likely tokens of each row: at most the vocabulary
  Tensor rows;      // i32 [num_rows] of the logits; undefined: the first num_rows
  Tensor tokens;    // i32 [rows of the logits]: the token of each row
  // i32 [num_rows, kMaxNamedLogprobs]: at most num_top tokens that are told in place of the most likely ones,
  // then -1; where that comes first, or undefined: none.
  Tensor named = {};
};

// The answer: in each row the token, then the most likely ones in order, or those named; behind these is what
// nobody reads.
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
