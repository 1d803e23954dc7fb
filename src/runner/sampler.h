#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/model.h"
#include "runner/token_states.h"

namespace quire {

// What a step computes before its samples.
struct StepOutputs {
  Tensor hidden;            // [rows, hidden_size]
  Tensor logits_part = {};  // f32 [rows, this rank's range of the vocabulary]; undefined: not computed
  Tensor logits = {};       // f32 [rows, vocab_size]; undefined: the ranks' parts are not gathered yet
};

// All that is made of logits: tokens, and what is reported of them and of prompts. Keeps what lasts over
// steps: each seat's sampling state, and of its tokens what penalties and bad words must know.
class Sampler {
 public:
  // The samples of one step, from its plan to its result.
  struct Samples {
    // A sequence that gets a token.
    struct Row {
      std::size_t sequence;  // entry of the plan, and of the result
      std::int32_t seat;
      std::int32_t hidden_row;                      // of its last position
      std::int32_t position;                        // of the token in its sequence
      bool mask_stop, constrained;                  // as the plan has it
      std::int32_t change = -1;                     // entry of the adjustment; -1: none on this rank
      std::span<const std::uint32_t> allowed = {};  // the bits that it may have, on the host; empty: any
    };

    Buffer tokens = {};    // i32 [max_num_seqs] on the host
    Buffer logprobs = {};  // on the host
    std::vector<Row> rows = {};
    Tensor hidden_rows = {};    // i32 [rows]
    Tensor rows_of_seats = {};  // i32 [max_num_seqs]: the row of a seat, or -1
    SamplingBatch batch = {};
    LogitsAdjustment adjustment = {};
    bool shared = false;              // each rank draws for its share of the rows
    LogprobBatch logprob_batch = {};  // its tokens are those sampled
    LogprobRows reported = {};        // in `logprobs`
  };

  Sampler(Backend& backend, Communicator& comm, const LmHead& head, const RuntimeConfig& config,
          Workspace& workspace);

  Samples make_samples() const;
  std::size_t staging_bytes() const;  // that build takes at most
  // Turns the sampling side of a plan into tensors, and queues what the seats' new owners need.
  void build(const StepPlan& plan, StagingArea& staging, Samples& samples);

  std::size_t mask_staging_bytes() const;  // that mask takes at most
  // Turns the masks of a step that was built into tensors.
  void mask(const StepMasks& masks, StagingArea& staging, Samples& samples) const;

  // The logits of hidden states, gathered where ranks do not share so many rows.
  StepOutputs compute_logits(const Tensor& hidden) const;
  // Queues the samples of a step. The rows that are sampled from are the first of its logits, in order;
  // others may follow.
  void sample(Samples& samples, StepOutputs step);
  // For OutputKind::kAll the logits of the span, whose rows of the step begin with `first`; for kLogprobs the
  // log-probabilities of next_tokens, i32 [tokens] of the step. Waits for them.
  void read_positions(const SequencePlan& span, std::int64_t first, const StepOutputs& step,
                      const Tensor& next_tokens, SequenceResult& result);
  // For OutputKind::kLastLogits, of a row of the step. Waits for them.
  void read_logits(const SequencePlan& span, std::int64_t row, const StepOutputs& step,
                   SequenceResult& result);
  // What was sampled, once the step is done. Every step's samples are read, in order.
  void read(const Samples& samples, StepResult& result);

  const Tensor& last_tokens() const { return last_tokens_; }  // i32 [max_num_seqs]: each seat's last sample

 private:
  struct Seat {
    SamplingState state;
    bool has_long_bad_words = false;  // of several tokens
    bool has_sampled = false;         // since it was started
    int num_unknown = 0;              // tokens sampled and not read
    std::vector<TokenId> output;      // known tokens, if there are long bad words
  };
  // A row of logits that is changed, as LogitsAdjustment has it; the starts are those of its biases and
  // masks.
  struct Change {
    std::int32_t row, seat;
    StateUse use;
    std::int32_t first_bias, first_mask;
  };
  struct Mask {
    TokenId token, last;
  };

  void start(const SequencePlan& plan);
  void stage_rows(StagingArea& staging, Samples& samples);
  void stage_adjustment(StagingArea& staging, Samples& samples);
  void add_change(Samples::Row& sampled, std::int32_t row);
  // Whether so many rows may be drawn by sample_share: where they are few, it takes longer.
  bool may_share(std::int64_t rows) const { return comm_.size() > 1 && rows >= 2 * comm_.size(); }
  void sample_share(const Samples& samples, const Tensor& part);
  Tensor logits_of(const StepOutputs& step, std::int64_t row, std::int64_t count) const;
  LogprobRows report(const LogprobBatch& batch, const Tensor& logits, void* host);
  Seat& seat_of(std::int32_t seat) { return seats_[seat]; }

  Backend& backend_;
  Communicator& comm_;
  const LmHead& head_;
  const RuntimeConfig& config_;
  TokenStates token_states_;
  Tensor workspace_;  // of sampling
  Tensor last_tokens_;
  Tensor tokens_;       // i32 [max_num_seqs or more]: this step's samples
  Tensor own_tokens_;   // i32: those that this rank drew, where ranks share them out
  Tensor output_rows_;  // [max_output_rows, hidden_size]: hidden states that are sampled from
  Tensor logprobs_;     // u8: of one call of log_probs
  std::vector<Seat> seats_;
  // Of this plan.
  std::vector<std::int32_t> reported_rows_;
  std::vector<Change> changes_;
  std::vector<SamplingState::Bias> biases_;
  std::vector<Mask> masks_;
};

}  // namespace quire
