#pragma once

#include <cstdint>
#include <vector>

#include "base/tensor.h"

namespace quire {

// Chunks of a sequence's tokens end at positions that are multiples of this, wherever steps do, and where a
// step does. Spans of at least kLongSpan tokens may be computed in them.
inline constexpr int kStateChunk = 64;
inline constexpr int kLongSpan = 32;

// A sequence's tokens of a step, where they are so many.
struct LongSpan {
  std::int32_t sequence;     // of the batch
  std::int32_t first_chunk;  // chunks of the long spans before this one
  std::int32_t skipped;      // tokens of the first chunk that earlier steps had
};

// Those of a batch, in its order.
struct LongSpans {
  std::vector<LongSpan> spans;
  int num_chunks = 0;

  void add(int sequence, int first_position, int num_tokens) {
    if (num_tokens < kLongSpan) return;
    const int skipped = first_position % kStateChunk;
    spans.push_back({sequence, num_chunks, skipped});
    num_chunks += (skipped + num_tokens + kStateChunk - 1) / kStateChunk;
  }
};

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
  Tensor long_spans = {};  // LongSpan [n, 3]: all that there are; or undefined, and no chunks
  int num_chunks = 0;      // of them together
};

// Most columns of a key of the gated delta rule: kernels hold whole columns of its state near.
inline constexpr int kMaxDeltaKeyDim = 256;

}  // namespace quire
