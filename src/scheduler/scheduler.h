#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "kvcache/cache_layout.h"
#include "kvcache/kv_cache.h"
#include "quire/request_output.h"
#include "scheduler/planned_steps.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"
#include "scheduler/waiting_queue.h"

namespace quire {

class SchedulerObserver;

enum class SchedulingPolicy : std::uint8_t {
  kFcfs,      // first come, first served
  kPriority,  // lower numbers of SequenceRequest::priority first; among equals, first come, first served
};

struct SchedulerConfig : CacheSizes {
  int max_num_seqs = 256;             // seats
  int max_num_batched_tokens = 2048;  // of a step
  int max_span = 0;                   // of it, tokens of one sequence; 0: all
  int max_model_len = 0;              // tokens of a sequence, prompt and output
  CacheLayout layout;
  PreemptionCosts preemption = {};  // by which host memory is chosen, or to compute it again
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  bool enable_prefix_caching = true;
  std::optional<std::uint64_t> hash_seed;          // of the prefix cache; unset: random
  int hash_bits = 64;                              // of the prefix cache; fewer only in tests
  std::function<void(SequenceId)> on_plan = {};    // called before a sequence is planned; only tests have one
  std::vector<SchedulerObserver*> observers = {};  // they outlive the scheduler
};

// What a step brought one sequence.
struct SequenceUpdate {
  SequenceId id = 0;
  std::optional<TokenId> token = {};  // a beam has none
  // kStop: token is one of the stop ids (and is its last token), or there is `hidden`. kError: the logits or
  // hidden states were not finite, or none_left.
  FinishReason finish = FinishReason::kNone;
  bool none_left = false;            // what the sequence asks of sampling rules out all tokens
  std::string error = {};            // with kError: why, if it is none of these
  bool is_request_at_fault = false;  // with `error`
  int num_cached_tokens = 0;
  CacheEnd cache_end = {};
  std::vector<float> logits = {};  // [n, vocab]: of the next n prompt positions, where asked for
  std::optional<PositionLogprobs> logprobs = {};  // of token, or of what could follow a beam, where asked for
  std::vector<PositionLogprobs> prompt_logprobs = {};  // of the next prompt tokens, where asked for
  std::vector<float> hidden = {};  // as SequenceResult has it, of a sequence that ends with its prompt
};

// A sequence that could not be planned, and ended with kError.
struct PlanningFailure {
  SequenceId id = 0;
  std::string why;
};

// A beam of the next round: one of this round's, and a token.
struct BeamFork {
  SequenceId parent = 0;
  TokenId token = -1;
};

// Is told of all that changes a scheduler, in that order and once it is done: whoever does the same with
// another of equal configuration gets equal plans. On the scheduler's thread. Whoever throws is told of
// nothing more.
class SchedulerObserver {
 public:
  using Event = std::function<void(SchedulerObserver&)>;  // a call of one of the functions below `handle`

  virtual ~SchedulerObserver() = default;
  // How a scheduler tells it of each event. Whoever hands all of them on to another one overrides this alone.
  virtual void handle(const Event& event) { event(*this); }
  virtual void added(const SequenceRequest& /*request*/) {}
  virtual void aborted(SequenceId /*id*/) {}  // or its deadline has passed
  // plan: null where there was nothing to plan.
  virtual void planned(const StepPlan* /*plan*/, std::span<const PlanningFailure> /*failures*/) {}
  virtual void applied(const StepResult& /*result*/, std::span<const SequenceUpdate> /*updates*/) {}
  virtual void foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> /*updates*/) {}
  virtual void forked(SequenceId /*first*/, std::span<const BeamFork> /*forks*/) {}
  virtual void lost_steps(std::span<const SequenceUpdate> /*updates*/) {}
};

struct SchedulerStats {
  int num_running = 0;  // those that ended with steps in flight included
  int num_waiting = 0;
  std::int64_t num_queued_requests = 0;  // of which no sequence was admitted yet
  std::int64_t num_queued_tokens = 0;    // that they count as
  int num_blocks = 0;
  int num_free_blocks = 0;
  std::uint64_t num_preemptions = 0;
  std::uint64_t num_saved_blocks = 0;  // to host memory
  std::uint64_t num_restored_blocks = 0;
  int num_host_blocks = 0;
  int num_free_host_blocks = 0;
  int num_state_slots = 0;  // of fixed states
  int num_free_state_slots = 0;
  std::uint64_t prefix_cache_queries = 0;  // prompt tokens of admitted sequences
  std::uint64_t prefix_cache_hits = 0;     // those of them found cached
  std::uint64_t num_invalid_logits = 0;    // sequences that ended because theirs were not finite
};

// Decides which tokens each step computes. Sequences have a precedence: their order of arrival or, under
// priorities, that among equals. Who comes first is admitted first and gets blocks first, and when blocks run
// out the last running one gives its blocks back: they are saved in host memory where there is room and that
// costs less than computing them again. Under priorities it does so for a waiting one of lower number too.
// Any number of steps may be in flight; they are executed and applied in the order they were planned.
//
// Threads: one thread owns a scheduler; nothing is locked.
class Scheduler {
 public:
  // Error on impossible values.
  explicit Scheduler(const SchedulerConfig& config);

  // Adds the sequences of a request. Returns the tokens that each may generate: max_tokens, or what the
  // context and the KV cache leave; 1 for what is pooled. Error when they could never run; then nothing has
  // changed. After another exception (no memory) abort_with_siblings must follow.
  int add(std::shared_ptr<const SequenceRequest> request);

  // Ends a sequence, in whatever state it is. True: it was alive, and no update of it will follow. False: it
  // had ended before, or never was.
  bool abort(SequenceId id);
  // The same for a sequence and, if it is the first, for its siblings. Returns those that were alive.
  std::vector<SequenceId> abort_with_siblings(SequenceId first);
  // Ends what has a deadline of `now` or before, in whatever state it is. No update follows.
  std::vector<SequenceId> expire(TimePoint now);

  // The next step, or none if nothing can run before a result is applied, an abort or an addition. If no step
  // is in flight, none means that nothing is unfinished. What is thrown while one sequence is planned ends it
  // alone: the step is planned without it. If schedule() itself throws, fail_in_flight or fail_all must
  // follow.
  std::optional<StepPlan> schedule();
  // Those not yet taken. No update of their sequences follows.
  std::vector<PlanningFailure> take_planning_failures() { return std::exchange(planning_failures_, {}); }

  // Books the oldest step in flight. The updates are in the plan's order; sequences that have ended, and
  // chunks of prompts without an outcome, have none.
  std::vector<SequenceUpdate> apply(StepResult result);

  // A constrained sequence of the newest step in flight, of which no other sample is in flight; none: it has
  // ended.
  std::optional<ConstrainedOutput> constrained(SequenceId id);
  // Books tokens that such a sequence must have next, of which the newest step samples the first one. At
  // least one, and at most ConstrainedOutput::most_forced.
  std::vector<SequenceUpdate> foresee(SequenceId id, std::span<const TokenId> tokens);

  // The next round of a beam search, whose beams are all held: instead of them there are `forks`, at least
  // one and at most its width, with the ids from `first` on. They share their parents' blocks; those of
  // parents that have no fork are given back at once. It must follow before anything else is planned.
  void fork_beams(SequenceId first, std::span<const BeamFork> forks);

  // The runner has lost every step in flight, and nothing else. Their sequences wait again, as after a
  // preemption, and since cached blocks may never have been written, all cached prefixes are forgotten. To
  // find the one that cannot be computed, each then runs alone until it gets a token; if its step is lost
  // again, it ends with kError.
  std::vector<SequenceUpdate> fail_in_flight();

  // Ends every sequence with kError; steps in flight are lost.
  std::vector<SequenceUpdate> fail_all();

  // Is told of all that follows, or no more. It outlives the scheduler, or is taken out before.
  void add_observer(SchedulerObserver* observer) { config_.observers.push_back(observer); }
  void remove_observer(SchedulerObserver* observer) { std::erase(config_.observers, observer); }

  bool has_unfinished() const { return !running_.empty() || !queue_.empty(); }
  int num_in_flight() const { return steps_.num_in_flight(); }
  SchedulerStats stats() const;
  const KvCache& cache() const { return cache_; }
  const SchedulerConfig& config() const { return config_; }
  const std::map<SequenceId, Sequence>& sequences() const { return sequences_; }

  // Throws InternalError where an invariant of docs/invariants.md does not hold. Costs about as much as a
  // step.
  void check() const;

 private:
  void check_fits(const SequenceRequest& request) const;
  void add_sequence(const std::shared_ptr<const SequenceRequest>& request, int index);

  template <typename Call>
  void tell(const Call& call) {
    const SchedulerObserver::Event event = std::ref(call);  // which takes no memory
    std::erase_if(config_.observers, [&](SchedulerObserver* observer) {
      try {
        observer->handle(event);
        return false;
      } catch (const std::exception& e) {  // no memory, say; what was done is done
        log_error("what looks on at the scheduler has failed: {}", what_of(e));
        return true;
      }
    });
  }
  std::optional<StepPlan> plan_step();
  void decide(const Sequence& sequence, Decision::Kind kind, Decision::Why why, int count = 0) {
    decisions_.push_back({sequence.id, kind, why, count});
  }
  // Why the first of those that wait does; false.
  bool waits_for(Decision::Why why, int count = 0) {
    waits_for_ = {.why = why, .count = count};
    return false;
  }
  bool plan_suspect();
  void plan_by_precedence();
  bool plan_next(Sequence& sequence);
  void plan_span(Sequence& sequence, int num_tokens);
  int span_limit(const Sequence& sequence) const {
    return up_to_state_border(sequence, std::min(sequence.span_limit(steps_.id()), config_.max_span));
  }
  bool is_state_border(const Sequence& sequence, int position) const;
  int up_to_state_border(const Sequence& sequence, int wanted) const;
  static constexpr int kFarIntervals = 128;  // of states that are kept within a long prompt
  int budget() { return config_.max_num_batched_tokens - steps_.plan().num_tokens; }
  int make_room(const Sequence& sequence, int wanted, Decision::Why& why);
  bool preempt_last(Decision::Why why);

  bool waiting_is_next(std::size_t place);
  bool admit_next(std::size_t place);
  int num_held_from(std::size_t place) const;
  const Sequence* find_sibling(const Sequence& sequence) const;
  ComputedPrefix find_computed(const Sequence& sequence, const Sequence* sibling) const;
  int blocks_ahead(const Sequence& sequence) const;
  void admit(Sequence& sequence, const ComputedPrefix& computed, const Sequence* sibling);
  void start_running(Sequence& sequence);

  void book(const PlannedSteps::Span& span, SequenceResult& result, std::vector<SequenceUpdate>& updates);
  void append(Sequence& sequence, TokenId token, SequenceUpdate& update);
  void end(Sequence& sequence);
  void end_by_error(Sequence& sequence, const std::exception& e, std::vector<SequenceUpdate>& updates);
  void give_back(Sequence& sequence);
  void forget(Sequence& sequence);

  bool strip_held_sibling(const Sequence& sequence);
  std::map<SequenceId, Sequence> take_out_beams(SequenceId first);
  void add_beam(SequenceId id, const Sequence& parent, TokenId token);

  void check_order() const;
  void check_writes(const Sequence& sequence) const;
  void check_sequence(const Sequence& sequence, const PlannedSteps::InFlight& in_flight) const;

  SchedulerConfig config_;
  int longest_alone_;  // tokens that a sequence may have computed if it has the whole cache for itself
  KvCache cache_;
  std::map<SequenceId, Sequence> sequences_;  // all that exist; addresses are stable
  std::vector<Sequence*> running_;            // by precedence; of one priority, all before those waiting
  WaitingQueue queue_;
  PlannedSteps steps_;
  std::set<std::pair<TimePoint, SequenceId>> deadlines_;
  std::vector<int> free_seats_;
  int decodes_left_ = 0;  // of the step that is planned: sequences not yet in it that want one token
  std::vector<PlanningFailure> planning_failures_;
  std::vector<Decision> decisions_;  // since the last plan
  Decision waits_for_;
  Decision::Why yields_for_ = Decision::Why::kNone;  // the one that drains to be preempted
  std::uint64_t last_arrival_ = 0;
  SchedulerStats counters_;  // what is counted here, up from the start
};

}  // namespace quire
