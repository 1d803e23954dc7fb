#include "inspect/recomputation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/ranks.h"

namespace quire {
namespace {

// What was sampled under masks, by step, in the order of its plan.
class MaskedTokens final : public SchedulerObserver {
 public:
  std::vector<TokenId> of(std::uint64_t step) const {
    const auto found = by_step_.find(step);
    return found == by_step_.end() ? std::vector<TokenId>() : found->second;
  }

  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    if (plan == nullptr) return;
    InFlight& step = in_flight_.emplace_back(plan->id);
    for (std::size_t i = 0; i < plan->sequences.size(); ++i)
      if (plan->sequences[i].constrained) step.places.push_back(i);
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> /*updates*/) override {
    for (const std::size_t place : in_flight_.front().places)
      by_step_[in_flight_.front().id].push_back(result.sequences[place].token);
    in_flight_.pop_front();
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { in_flight_.clear(); }

 private:
  struct InFlight {
    std::uint64_t id = 0;
    std::vector<std::size_t> places = {};  // of the constrained sequences
  };

  std::deque<InFlight> in_flight_;
  std::map<std::uint64_t, std::vector<TokenId>> by_step_;
};

// Each allows the one token, or where none was sampled nothing.
StepMasks masks_of(const std::vector<TokenId>& tokens, std::int64_t vocab_size) {
  const auto words = static_cast<std::size_t>(StepMasks::words(vocab_size));
  StepMasks masks{.rows = {}, .bits = std::vector<std::uint32_t>(tokens.size() * words)};
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    masks.rows.push_back(static_cast<std::int32_t>(row));
    const TokenId token = tokens[row];
    if (token >= 0 && token < vocab_size) masks.bits[row * words + token / 32] |= 1U << token % 32;
  }
  return masks;
}

void check_fits(const RuntimeConfig& config, const SchedulerConfig& recorded) {
  if (config.cache.layout != recorded.layout)
    fail("the KV cache is laid out for another model, or another --block-size, than the recorded one");
  const auto check = [](const char* what, int have, int need, const char* flag) {
    if (have < need)
      fail("the recorded engine had {} {}, this one has {}: give more {}", need, what, have, flag);
  };
  check("blocks", config.num_blocks, recorded.num_blocks, "--kv-cache-memory");
  check("slots of states", config.num_state_slots, recorded.num_state_slots, "--state-cache-memory");
  check("blocks of host memory", config.num_host_blocks, recorded.num_host_blocks, "--swap-space");
  check("slots of host memory", config.num_host_state_slots, recorded.num_host_state_slots, "--swap-space");
}

// Submits, samples and collects in the engine's order.
class Computation final : public SchedulerObserver {
 public:
  Computation(RankGroup& ranks, std::int64_t vocab_size, const RecordingInfo& info,
              const MaskedTokens& masked)
      : ranks_(ranks), vocab_size_(vocab_size), replayer_(info.scheduler), masked_(masked) {}

  bool ended() const { return result_.difference || replayer_.difference(); }
  Recomputation result() const {
    Recomputation result = result_;
    result.plans = replayer_.difference();
    result.num_steps = replayer_.step();
    return result;
  }

  void added(const SequenceRequest& request) override { replayer_.added(request); }
  void aborted(SequenceId id) override { replayer_.aborted(id); }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> failures) override {
    replayer_.planned(plan, failures);
    if (ended() || !replayer_.plan()) return;
    pending_ = masked_.of(plan->id);
    ranks_.submit(*replayer_.plan());
    if (in_flight_++ == 0) sample();
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override {
    const StepResult computed = ranks_.collect();
    --in_flight_;
    compare(result, computed);
    replayer_.applied(result, updates);
    if (!ended()) sample();
  }
  void foreseen(SequenceId id, std::span<const SequenceUpdate> updates) override {
    replayer_.foreseen(id, updates);
  }
  void forked(SequenceId first, std::span<const BeamFork> forks) override { replayer_.forked(first, forks); }
  void lost_steps(std::span<const SequenceUpdate> updates) override {
    ranks_.drop_in_flight();
    in_flight_ = 0;
    pending_.clear();
    replayer_.lost_steps(updates);
  }

 private:
  // The newest step, if it waits for masks.
  void sample() {
    if (pending_.empty()) return;
    ranks_.sample(std::make_shared<const StepMasks>(masks_of(std::exchange(pending_, {}), vocab_size_)));
  }

  void compare(const StepResult& recorded, const StepResult& computed) {
    for (std::size_t i = 0; i < recorded.sequences.size(); ++i) {
      const SequenceResult& sequence = recorded.sequences[i];
      const TokenId token = computed.sequences.at(i).token;
      if (token != sequence.token) {
        result_.difference = {computed.id, sequence.sequence, sequence.token, token};
        return;
      }
      if (token >= 0) ++result_.num_compared;
    }
    const auto masked = std::ranges::count_if(masked_.of(computed.id), [](TokenId id) { return id >= 0; });
    result_.num_masked += static_cast<std::uint64_t>(masked);
    result_.num_compared -= static_cast<std::uint64_t>(masked);
  }

  RankGroup& ranks_;
  const std::int64_t vocab_size_;
  Replayer replayer_;
  const MaskedTokens& masked_;
  std::vector<TokenId> pending_;  // to be sampled in the newest step
  int in_flight_ = 0;
  Recomputation result_;
};

}  // namespace

Recomputation recompute(const Recording& recording, EngineConfig config, ModelFiles model) {
  const RecordingInfo& info = recording.info();
  if (!info.with_tokens) fail("the recording has no ids of tokens; it was made without --record-tokens");
  if (!info.from_start) fail("the recording has no beginning: it is the last part of what was");
  MaskedTokens masked;
  recording.read(masked);

  config.max_num_seqs = info.scheduler.max_num_seqs;
  config.max_num_batched_tokens = info.scheduler.max_num_batched_tokens;
  config.max_model_len = info.scheduler.max_model_len;
  config.block_size = info.scheduler.layout.block_size;
  const EngineSetup setup{std::move(config), std::move(model)};
  const std::unique_ptr<RankGroup> ranks = make_rank_group(setup);
  ranks->open();
  const RuntimeConfig& runtime = ranks->resolve();
  check_fits(runtime, info.scheduler);
  ranks->load();
  ranks->capture_graphs();

  Computation computation(*ranks, runtime.spec.vocab_size, info, masked);
  RecordingReader reader(recording);
  while (!computation.ended() && reader.next(computation)) {
  }
  ranks->drop_in_flight();
  Recomputation result = computation.result();
  result.whole = reader.ended();
  return result;
}

}  // namespace quire
