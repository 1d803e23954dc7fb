#pragma once

#include <vector>

#include "ops/logits_batches.h"
#include "runner/staging_area.h"
#include "runner/token_states.h"

namespace quire {

// The sampling side of a step plan as tensors on the device.
struct SamplingTensors {
  Tensor rows;           // i32 [rows]: rows of the hidden states to sample from
  Tensor rows_of_seats;  // i32 [max_num_seqs]: the place of a seat's entry in that and in the batch, or -1
  SamplingBatch batch;
  LogitsAdjustment adjustment;
  LogprobBatch logprobs;  // of sampled tokens; its tokens are those sampled
  Tensor
      prompt_targets;  // i32 [n]: the tokens after the positions of all spans with kLogprobs, as far as known
};

// Turns the sampling side of plans into tensors. Keeps what lasts over steps: each seat's sampling state, and
// of its tokens what penalties and bad words must know.
class SamplingBuilder {
 public:
  SamplingBuilder(Backend& backend, const RuntimeConfig& config);

  std::size_t staging_bytes() const;  // that build may take at most

  void begin_step() { token_states_.begin_step(); }
  // A seat's new owner; between the two.
  void start(const SequencePlan& plan);
  SamplingTensors build(const StepPlan& plan, StagingArea& staging);
  // Most likely tokens to be reported beside the seat's sampled one; SamplingState::kNoLogprobs: none, and
  // not the token's own.
  int num_logprobs(int seat) const { return seats_[static_cast<std::size_t>(seat)].state.num_logprobs; }
  int num_prompt_logprobs(int seat) const {
    return seats_[static_cast<std::size_t>(seat)].state.num_prompt_logprobs;
  }
  // Whether there was a token to be sampled; asked before the one that was is told.
  bool leaves_token(int seat, bool mask_stop) const;
  // A token that was sampled for a seat has become known; every one is told, in order.
  void book(int seat, TokenId token);

 private:
  struct Seat {
    SamplingState state;
    bool has_long_bad_words = false;  // of several tokens
    bool has_sampled = false;         // since it was started
    int num_unknown = 0;              // tokens sampled and not booked
    std::vector<TokenId> output;      // known tokens, if there are long bad words
  };

  void stage_rows(const StepPlan& plan, StagingArea& staging, SamplingTensors& tensors) const;
  void gather_adjustments(const StepPlan& plan);
  void add_adjustment(const SequencePlan& sequence, std::int32_t row);
  void mask_bad_words(const Seat& seat);
  void stage_logprobs(const StepPlan& plan, StagingArea& staging, SamplingTensors& tensors);
  LogitsAdjustment stage_adjustments(StagingArea& staging) const;
  Seat& seat_of(const SequencePlan& sequence) { return seats_[static_cast<std::size_t>(sequence.seat)]; }
  const Seat& seat_of(const SequencePlan& sequence) const {
    return seats_[static_cast<std::size_t>(sequence.seat)];
  }

  const RuntimeConfig& config_;
  Buffer workspace_;
  TokenStates token_states_;
  std::vector<Seat> seats_;
  std::vector<std::int32_t> reported_rows_, prompt_targets_;  // of this plan
  // Of this plan's changed rows, as LogitsAdjustment has them.
  struct {
    std::vector<std::int32_t> rows, seats, state_uses, bias_starts, bias_ids, mask_starts, masks;
    std::vector<float> repetition, frequency, presence, bias_values;
  } changed_;
};

}  // namespace quire
