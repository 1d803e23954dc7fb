#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvcache/ids.h"
#include "quire/logprobs.h"

namespace quire {

// What crosses from the scheduler to the runner and back. Plans are executed in the order of their ids.

// What a sequence's span yields. The hidden states are those after the final norm.
enum class OutputKind : std::uint8_t {
  kNone,
  kLast,        // a sample
  kLastHidden,  // the last position's hidden state, and no sample
  kLastLogits,  // its logits of the tokens in SamplingState::allowed_ids, and no sample
  kHiddenSum,   // nothing yet: its hidden states are added up, with those of the spans before it
  kHiddenMean,  // the same, then the mean over all positions, and no sample
  kAll,         // beside a sample, logits of every position
  kLogprobs,    // beside a sample, of every position the log-probability of the prompt token that follows
};
constexpr int kNumOutputKinds = 8;
constexpr bool of_every_position(OutputKind kind) { return kind >= OutputKind::kAll; }
constexpr bool adds_up(OutputKind kind) {
  return kind == OutputKind::kHiddenSum || kind == OutputKind::kHiddenMean;
}
constexpr bool is_pooled(OutputKind kind) {
  return kind == OutputKind::kLastHidden || kind == OutputKind::kLastLogits || adds_up(kind);
}
// Whether it wants of a prompt what no cached block holds.
constexpr bool needs_every_position(OutputKind kind) { return of_every_position(kind) || adds_up(kind); }

// Whether `tokens` ends with the first n of `word`.
bool ends_with(std::span<const TokenId> tokens, const std::vector<TokenId>& word, std::size_t n);

// What sampling needs to know of a sequence, fixed for its life.
struct SamplingState {
  static constexpr int kMaxStopIds = 256;
  static constexpr int kMaxBiases = 1024;
  static constexpr int kMaxBadWords = 512;

  struct Bias {
    TokenId id;
    float value;  // added to the logit
  };

  float temperature = 0.0F;  // 0: greedy
  float top_p = 1.0F;
  float min_p = 0.0F;
  int top_k = 0;  // 0: all
  std::uint64_t seed = 0;
  std::vector<TokenId> stop_ids;  // at most kMaxStopIds; masked where SequencePlan::mask_stop says so
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;              // over 0
  std::vector<Bias> biases;                     // at most kMaxBiases, of different tokens
  std::vector<TokenId> allowed_ids;             // empty: all
  std::vector<std::vector<TokenId>> bad_words;  // at most kMaxBadWords; none is completed in the output

  // Most likely tokens that are reported beside the sampled one, and with kLogprobs beside each prompt token;
  // kNoLogprobs: the token itself is not reported either.
  static constexpr int kNoLogprobs = -1;
  int num_logprobs = kNoLogprobs;
  int num_prompt_logprobs = kNoLogprobs;
  std::vector<TokenId> logprob_ids;  // num_logprobs of them, told in place of the most likely; empty: those

  bool has_penalties() const {
    return presence_penalty != 0.0F || frequency_penalty != 0.0F || repetition_penalty != 1.0F;
  }
  // In biases, allowed_ids and bad_words.
  std::size_t num_named_ids() const {
    std::size_t count = biases.size() + allowed_ids.size();
    for (const std::vector<TokenId>& word : bad_words) count += word.size();
    return count;
  }
  // Whether logits are changed by what each token of the vocabulary has been so far, or may be.
  bool needs_token_states() const { return has_penalties() || !allowed_ids.empty(); }
  // Whether sampling must know the tokens so far.
  bool needs_history() const { return has_penalties() || !bad_words.empty(); }
  // Whether there is a token that may follow `output`, of which only bad words of several tokens know.
  // mask_stop: as SequencePlan's. bits: those that StepMasks allow; empty: all.
  bool leaves_token(std::span<const TokenId> output, bool mask_stop, int vocab_size,
                    std::span<const std::uint32_t> bits = {}) const;
};

struct SequencePlan {
  SequenceId sequence = 0;
  int seat = 0;  // the runner's row for this sequence, in [0, max_num_seqs)
  std::optional<SamplingState>
      start;                     // set when the seat is given to this sequence (anew after a preemption)
  std::vector<TokenId> history;  // with start, if that needs it: all tokens so far, none is in flight
  int num_prompt = 0;            // of history
  int first_position = 0;        // of the span: the tokens before it are in the cache
  int num_tokens = 0;            // of the span
  std::vector<TokenId> tokens;   // the span's ids; empty: one token, the seat's last sample
  // The block table keeps its first rows and goes on with new_blocks, [rows, num_lanes]. What stands before
  // them at the start, or is kNoBlock, is never attended to.
  int first_new_row = 0;
  std::vector<BlockId> new_blocks;
  // Where layers have fixed states: the slot of those before the span, kNoBlock where they are zeros, and
  // the one that gets those behind it.
  BlockId state_from = kNoBlock, state_to = kNoBlock;
  OutputKind output = OutputKind::kNone;
  TokenId next_token = -1;   // for kLogprobs: the prompt's token after the span, if there is one
  bool sample = false;       // sample from the span's last position; the token becomes the seat's last sample
  bool mask_stop = false;    // min_tokens is not reached: no stop id may be sampled
  bool constrained = false;  // StepMasks say what may be sampled
};

// Which tokens may be sampled in the constrained sequences of a plan, which is sampled when these have come.
struct StepMasks {
  std::vector<std::int32_t> rows;   // of `bits`, for each constrained sequence in the plan's order
  std::vector<std::uint32_t> bits;  // [n, words(vocab)]: bit i % 32 of word i / 32 is of token i

  static constexpr std::int64_t words(std::int64_t vocab) { return (vocab + 31) / 32; }
};

// What was decided of a sequence when a step was planned, or since the step before, and why: for those who
// look on.
struct Decision {
  enum class Kind : std::uint8_t {
    kAdmitted,   // count: its tokens that were found computed
    kPreempted,  // count: its blocks that go to host memory
    kCut,        // it wanted more tokens in the step; count: how many more
    kWaits,      // the first of those that wait; count: blocks that it lacks, where that is why
  };
  enum class Why : std::uint8_t {
    kNone,
    kBudget,    // the step has no more tokens, or those that are left are for the decodes behind
    kLimit,     // of one sequence's tokens in a step
    kBlocks,    // none is free, or not as many as are needed
    kSeats,     // as many sequences run as may
    kSlots,     // of fixed states: none is free
    kStates,    // fixed states are kept behind what it got
    kPriority,  // of another sequence
    kSibling,   // it computes what will be shared
    kDraining,  // what it waits for is given back when steps in flight are applied
    kLost,      // a step was lost: whoever was in it runs alone
  };
  static constexpr int kNumKinds = 4, kNumWhys = 11;

  SequenceId sequence = 0;
  Kind kind = Kind::kWaits;
  Why why = Why::kNone;
  int count = 0;

  bool operator==(const Decision&) const = default;
};

struct StepPlan {
  std::uint64_t id = 0;  // 1, 2, 3, …
  int num_tokens = 0;    // over all sequences
  std::vector<SequencePlan> sequences;
  // In this order, before anything is computed: from the cache to host memory, all at once; within the cache,
  // one after the other; from host memory to the cache, all at once.
  std::vector<BlockCopy> saves;
  std::vector<BlockCopy> block_copies;
  std::vector<BlockCopy> restores;
  StateCopies state_copies;  // at the same time
  std::vector<Decision> decisions = {};

  bool constrained() const { return std::ranges::any_of(sequences, &SequencePlan::constrained); }
};

struct SequenceResult {
  SequenceId sequence = 0;
  // The sampled token; kNoToken where the plan asked for none, kInvalidLogits where no logit, or not all of
  // `hidden`, was a finite number, kNoneLeft where what the sequence asks of sampling rules out all tokens.
  TokenId token = -1;
  std::vector<float> logits = {};                 // [num_tokens, vocab] for OutputKind::kAll
  std::optional<PositionLogprobs> logprobs = {};  // of the sampled token, where wanted
  // For OutputKind::kLogprobs: of the tokens after each position, as far as they are known.
  std::vector<PositionLogprobs> prompt_logprobs = {};
  // [hidden_size] for OutputKind::kLastHidden and kHiddenMean, [allowed_ids] for kLastLogits
  std::vector<float> hidden = {};

  static constexpr TokenId kNoToken = -1;
  static constexpr TokenId kInvalidLogits = -2;
  static constexpr TokenId kNoneLeft = -3;
};

struct StepResult {
  std::uint64_t id = 0;
  std::vector<SequenceResult> sequences;  // in the plan's order
};

}  // namespace quire
