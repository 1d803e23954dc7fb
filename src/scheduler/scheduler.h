#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kvcache/block_pool.h"
#include "kvcache/prefix_cache.h"
#include "quire/request_output.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace quire {

struct SchedulerConfig {
  int max_num_seqs = 256;             // slots
  int max_num_batched_tokens = 2048;  // of a step
  int max_model_len = 0;              // tokens of a sequence, prompt and output
  int block_size = 16;                // tokens; a power of two, 8 to 256
  int num_blocks = 0;
  bool enable_prefix_caching = true;
  std::optional<std::uint64_t> hash_seed;  // of the prefix cache; unset: random
  int hash_bits = 64;                      // of the prefix cache; fewer only in tests
};

// What a step brought one sequence.
struct SequenceUpdate {
  SequenceId id = 0;
  std::optional<TokenId> token;
  // kStop: token is one of the stop ids (and is its last token). kError: the logits were not finite.
  FinishReason finish = FinishReason::kNone;
  int num_cached_tokens = 0;
  std::vector<float> logits;                 // [n, vocab]: of the next n prompt positions, where asked for
  std::optional<PositionLogprobs> logprobs;  // of token, where asked for
  std::vector<PositionLogprobs> prompt_logprobs;  // of the next prompt tokens, where asked for
};

struct SchedulerStats {
  int num_running = 0;  // those that ended with steps in flight included
  int num_waiting = 0;
  int num_blocks = 0;
  int num_free_blocks = 0;
  std::uint64_t num_preemptions = 0;
  std::uint64_t prefix_cache_queries = 0;  // prompt tokens of admitted sequences
  std::uint64_t prefix_cache_hits = 0;     // those of them found cached
};

// Decides which tokens each step computes. First come, first served: sequences are admitted in order of
// arrival, the older ones get blocks first, and when blocks run out the youngest running one gives its blocks
// back, to be computed again later. Any number of steps may be in flight; they are executed and applied in
// the order they were planned.
//
// Threads: one thread owns a scheduler; nothing is locked.
class Scheduler {
 public:
  // Error on impossible values.
  explicit Scheduler(const SchedulerConfig& config);

  // Error when the sequence could never run; then nothing has changed.
  void add(SequenceRequest request);

  // Ends a sequence, in whatever state it is. True: it was alive, and no update of it will follow. False: it
  // had ended before, or never was.
  bool abort(SequenceId id);

  // The next step, or none if nothing can run before a result is applied, an abort or an addition. If no step
  // is in flight, none means that nothing is unfinished.
  std::optional<StepPlan> schedule();

  // Books the oldest step in flight. The updates are in the plan's order; sequences that have ended, and
  // chunks of prompts without an outcome, have none.
  std::vector<SequenceUpdate> apply(StepResult result);

  // The runner has lost every step in flight, and nothing else. Their sequences end with kError, and since
  // cached blocks may never have been written, all cached prefixes are forgotten.
  std::vector<SequenceUpdate> fail_in_flight();

  // Ends every sequence with kError, those in flight as fail_in_flight does.
  std::vector<SequenceUpdate> fail_all();

  bool has_unfinished() const { return !running_.empty() || !waiting_.empty(); }
  int num_in_flight() const { return static_cast<int>(in_flight_.size()); }
  SchedulerStats stats() const;
  const BlockPool& pool() const { return pool_; }

  // Throws InternalError where an invariant of docs/invariants.md does not hold. Costs about as much as a
  // step.
  void check() const;

 private:
  struct PlannedSequence {
    Sequence* sequence;
    int num_tokens;
    OutputKind output;
    bool sample;
  };
  struct PlannedStep {
    std::uint64_t id;
    std::vector<PlannedSequence> sequences;
  };
  struct Draft;  // a step in the making

  void plan_running(Draft& draft);
  void admit_waiting(Draft& draft);
  bool admit(Sequence& sequence);
  int span_limit(const Sequence& sequence) const;
  void plan_span(Sequence& sequence, int num_tokens, bool start, Draft& draft);
  int make_room(const Sequence& sequence, int wanted);
  void preempt_youngest();
  int blocks_ahead(const Sequence& sequence) const;
  void index_full_blocks(Sequence& sequence);
  void book(const PlannedSequence& planned, SequenceResult& result, std::vector<SequenceUpdate>& updates);
  FinishReason finish_reason(const Sequence& sequence) const;
  void end(Sequence& sequence);
  void give_back(Sequence& sequence);
  void check_sequence(const Sequence& sequence) const;
  void check_order() const;
  int blocks_for(int num_tokens) const { return (num_tokens + config_.block_size - 1) / config_.block_size; }

  SchedulerConfig config_;
  BlockPool pool_;
  PrefixCache prefix_cache_;
  std::unordered_map<SequenceId, Sequence> sequences_;  // all that exist; addresses are stable
  std::vector<Sequence*> running_;                      // in order of arrival, all before those waiting
  std::deque<Sequence*> waiting_;                       // in order of arrival
  std::vector<int> free_slots_;
  std::deque<PlannedStep> in_flight_;
  std::uint64_t last_arrival_ = 0;
  std::uint64_t last_plan_ = 0;
  bool admission_blocked_ = false;  // the first waiting one did not fit, and nothing was given back since
  std::uint64_t num_preemptions_ = 0;
  std::uint64_t prefix_cache_queries_ = 0;
  std::uint64_t prefix_cache_hits_ = 0;
};

}  // namespace quire
