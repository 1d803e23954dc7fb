#pragma once

#include <cstdint>
#include <vector>

#include "ops/ops.h"
#include "runner/runtime_config.h"
#include "runner/staging_area.h"
#include "scheduler/step_plan.h"

namespace quire {

// On the device, what each seat's tokens have been: for penalties and for tokens that are not allowed. Rows
// of seats without either are never touched.
class TokenStates {
 public:
  TokenStates(Backend& backend, const RuntimeConfig& config, Workspace& workspace);

  // A step begins; all but the last kMaxStepsInFlight - 1 have been waited for.
  void begin_step() {
    part_ = (part_ + 1) % kMaxStepsInFlight;
    num_staged_ = 0;
  }
  // Writes the row of a seat's new owner; queued before the step that the plan belongs to. Waits for nothing,
  // unless the step's new owners have more than kEntries entries in all.
  void start(const SequencePlan& plan);

  const Tensor& tensor() const { return states_; }  // i16 [max_num_seqs, vocab, rounded up]

  static constexpr std::int64_t kEntries = 32768;  // four times the tokens of a step on a GPU, by default

 private:
  struct Entry {
    TokenId token;
    std::int32_t state;
  };

  void collect(const SequencePlan& plan);

  Backend& backend_;
  Tensor states_;
  Tensor blank_rows_;                    // i16 [2, vocab, rounded up]: all tokens allowed, none allowed
  Buffer host_entries_;                  // i32 [kMaxStepsInFlight, kEntries, 2]: a part for each step
  Tensor device_entries_;                // i32 [kEntries, 2]
  std::int64_t part_ = 0;                // of the host's entries, for this step
  std::int64_t num_staged_ = 0;          // entries of it that copies may still be reading
  std::vector<std::uint16_t> of_token_;  // 0, but while entries are collected
  std::vector<Entry> entries_;           // of one row
};

}  // namespace quire
