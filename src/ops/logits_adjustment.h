#pragma once

#include <cstdint>

#include "base/tensor.h"

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
// backend's device. See Ops::adjust_logits.
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
};

}  // namespace quire
