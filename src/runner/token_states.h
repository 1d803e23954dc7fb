#pragma once

#include <cstdint>
#include <vector>

#include "runner/runtime_config.h"
#include "scheduler/step_plan.h"

namespace quire {

// On the device, what each slot's tokens have been: for penalties and for tokens that are not allowed. Rows
// of slots without either are never touched.
class TokenStates {
 public:
  TokenStates(Backend& backend, const RuntimeConfig& config);

  // Writes the row of a slot's new owner; queued before the step that the plan belongs to.
  void start(const SequencePlan& plan);

  const Tensor& tensor() const { return states_; }  // i16 [max_num_seqs, vocab, rounded up]

 private:
  void collect(const SequencePlan& plan);
  void upload(const Tensor& row);

  Backend& backend_;
  Buffer buffer_;
  Tensor states_;
  Tensor blank_rows_;                     // i16 [2, vocab, rounded up]: all tokens allowed, none allowed
  Buffer host_entries_, device_entries_;  // i32 [kEntries, 2]
  Event uploaded_ = 0;                    // the host's entries may be written again
  std::vector<std::uint16_t> of_token_;   // 0, but while entries are collected
  std::vector<std::int32_t> entries_;     // (token, state) pairs of one row
};

}  // namespace quire
