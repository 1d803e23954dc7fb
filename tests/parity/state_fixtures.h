#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "ops/state_batch.h"
#include "parity/ops_fixtures.h"

namespace quire::testing {

// A sequence of a step: how many tokens it has, and between which slots they take its state.
struct StateSpan {
  std::int32_t tokens, from, to;
};

// The batch of some sequences, one behind the other.
class StateSpans {
 public:
  explicit StateSpans(std::vector<StateSpan> spans) : spans_(std::move(spans)) {
    for (const StateSpan& span : spans_) {
      starts_.push_back(starts_.back() + span.tokens);
      from_.push_back(span.from);
      to_.push_back(span.to);
      batch_.max_query_len = std::max(batch_.max_query_len, span.tokens);
    }
    batch_.num_sequences = static_cast<int>(spans_.size());
    batch_.num_tokens = starts_.back();
    batch_.query_starts = ints(starts_);
    batch_.from = ints(from_);
    batch_.to = ints(to_);
  }
  StateSpans(const StateSpans&) = delete;
  StateSpans& operator=(const StateSpans&) = delete;

  const StateBatch& batch() const { return batch_; }
  const std::vector<StateSpan>& spans() const { return spans_; }

 private:
  std::vector<StateSpan> spans_;
  std::vector<std::int32_t> starts_ = {0}, from_, to_;
  StateBatch batch_;
};

// Slots of fixed states f32 [slots, rows, cols] in memory that has `gap` more between two of them.
class Slots {
 public:
  Slots(std::int64_t slots, std::int64_t rows, std::int64_t cols, std::mt19937& random, std::int64_t gap = 3)
      : memory_(DType::kF32, slots, rows * cols + gap, random),
        tensor_(Tensor(memory_.tensor().data(), DType::kF32, {slots, rows, cols})
                    .with_strides({rows * cols + gap, cols, 1})) {}

  const Tensor& tensor() const { return tensor_; }
  const Matrix& memory() const { return memory_; }

 private:
  Matrix memory_;
  Tensor tensor_;
};

}  // namespace quire::testing
