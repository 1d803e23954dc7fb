#include "inspect/recomputation.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/ranks.h"
#include "ops/logits_batches.h"

namespace quire {
namespace {

// What must be known of a recording before its first step is computed.
class RecordedTokens final : public SchedulerObserver {
 public:
  // What was sampled under masks, in the order of the step's plan; empty: its result is not there.
  std::vector<TokenId> masked(std::uint64_t step) const {
    const auto found = by_step_.find(step);
    return found == by_step_.end() ? std::vector<TokenId>() : found->second;
  }
  std::uint32_t largest_id() const { return largest_id_; }
  int most_logprobs() const { return most_logprobs_; }  // that a request has asked for, of a position

  void added(const SequenceRequest& request) override {
    const SamplingState& sampling = request.sampling;
    for (const auto* ids :
         {&request.prompt, &sampling.stop_ids, &sampling.allowed_ids, &sampling.logprob_ids})
      note(*ids);
    for (const SamplingState::Bias& bias : sampling.biases) note({&bias.id, 1});
    for (const std::vector<TokenId>& word : sampling.bad_words) {
      if (word.empty()) fail("a bad word of request {} has no tokens", request.id);
      note(word);
    }
    const auto check = [&](const char* what, std::size_t count, std::size_t most) {
      if (count > most) fail("request {} has {} {}; there can be {}", request.id, count, what, most);
    };
    check("stop ids", sampling.stop_ids.size(), SamplingState::kMaxStopIds);
    check("biases", sampling.biases.size(), SamplingState::kMaxBiases);
    check("bad words", sampling.bad_words.size(), SamplingState::kMaxBadWords);
    check("named tokens", sampling.logprob_ids.size(), kMaxNamedLogprobs);
    // The sampler has room for as many as can be named.
    const int num_top = sampling.logprob_ids.empty() ? sampling.num_logprobs : 0;
    most_logprobs_ = std::max({most_logprobs_, num_top, sampling.num_prompt_logprobs});
  }
  void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
    if (plan == nullptr) return;
    auto& places = in_flight_.emplace_back(plan->id, std::vector<std::size_t>()).second;
    for (std::size_t i = 0; i < plan->sequences.size(); ++i)
      if (plan->sequences[i].constrained) places.push_back(i);
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> /*updates*/) override {
    if (in_flight_.empty()) fail("a result without a step in flight");
    for (const SequenceResult& sequence : result.sequences)
      if (sequence.token >= 0) note({&sequence.token, 1});
    const auto& [step, places] = in_flight_.front();
    for (const std::size_t place : places) by_step_[step].push_back(result.sequences[place].token);
    in_flight_.pop_front();
  }
  void foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> updates) override {
    for (const SequenceUpdate& update : updates) note({&*update.token, 1});
  }
  void forked(SequenceId /*first*/, std::span<const BeamFork> forks) override {
    for (const BeamFork& fork : forks) note({&fork.token, 1});
  }
  void lost_steps(std::span<const SequenceUpdate> /*updates*/) override { in_flight_.clear(); }

 private:
  void note(std::span<const TokenId> ids) {  // one below 0, which no vocabulary has, is among the largest
    for (const TokenId id : ids) largest_id_ = std::max(largest_id_, static_cast<std::uint32_t>(id));
  }

  // Steps, and where in them the constrained sequences are.
  std::deque<std::pair<std::uint64_t, std::vector<std::size_t>>> in_flight_;
  std::map<std::uint64_t, std::vector<TokenId>> by_step_;
  std::uint32_t largest_id_ = 0;
  int most_logprobs_ = 0;
};

// Each allows the one token. Where there was none because logits were no numbers, all are allowed, so that
// this is seen again; else nothing is.
StepMasks masks_of(const std::vector<TokenId>& tokens, std::int64_t vocab_size) {
  const auto words = static_cast<std::size_t>(StepMasks::words(vocab_size));
  StepMasks masks{.rows = {}, .bits = std::vector<std::uint32_t>(tokens.size() * words)};
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    masks.rows.push_back(static_cast<std::int32_t>(row));
    const TokenId token = tokens[row];
    if (token >= 0) masks.bits[row * words + token / 32] |= 1U << token % 32;
    if (token == SequenceResult::kInvalidLogits)
      std::ranges::fill(std::span(masks.bits).subspan(row * words, words), ~0U);
  }
  return masks;
}

void check_fits(const RuntimeConfig& config, const SchedulerConfig& scheduler,
                const RecordedTokens& recorded) {
  const auto vocab_size = static_cast<unsigned>(config.spec.vocab_size);
  if (recorded.largest_id() >= vocab_size)
    fail("the recording has token id {}; this model's are from 0 to {}", recorded.largest_id(),
         vocab_size - 1);
  if (recorded.most_logprobs() > config.max_logprobs)
    fail("the recording has requests for {} log-probabilities of a position; this model has {} tokens",
         recorded.most_logprobs(), config.spec.vocab_size);
  if (config.cache.layout != scheduler.layout)
    fail("the KV cache is laid out for another model, or another --kv-cache-dtype, than the recorded one");
  const auto check = [](const char* what, int have, int need, const char* flag) {
    if (have < need)
      fail("the recorded engine had {} {}, this one has {}: give more {}", need, what, have, flag);
  };
  check("blocks", config.num_blocks, scheduler.num_blocks, "--kv-cache-memory");
  check("slots of states", config.num_state_slots, scheduler.num_state_slots, "--state-cache-memory");
  check("blocks of host memory", config.num_host_blocks, scheduler.num_host_blocks, "--swap-space");
  check("slots of host memory", config.num_host_state_slots, scheduler.num_host_state_slots, "--swap-space");
}

// Makes each plan again, and submits, samples and collects in the engine's order.
class Computation final : public Replayer {
 public:
  Computation(RankGroup& ranks, std::int64_t vocab_size, const RecordingInfo& info,
              const RecordedTokens& recorded)
      : Replayer(info.scheduler), ranks_(ranks), vocab_size_(vocab_size), recorded_(recorded) {}

  bool ended() const { return result_.difference || difference(); }
  Recomputation result(bool whole) {
    result_.plans = difference();
    result_.num_steps = step();
    result_.whole = whole;
    return result_;
  }

  void planned(const StepPlan* recorded, std::span<const PlanningFailure> failures) override {
    Replayer::planned(recorded, failures);
    if (ended() || !plan()) return;
    pending_ = recorded_.masked(plan()->id);
    // Of a step that was lost, or behind which the recording is cut off, nothing is known: nothing is
    // sampled.
    pending_.resize(std::ranges::count(plan()->sequences, true, &SequencePlan::constrained),
                    SequenceResult::kNoToken);
    ranks_.submit(*plan());
    if (in_flight_++ == 0) sample();
  }
  void applied(const StepResult& result, std::span<const SequenceUpdate> updates) override {
    const StepResult computed = ranks_.collect();
    --in_flight_;
    compare(result, computed);
    Replayer::applied(result, updates);
    if (!ended()) sample();
  }
  void lost_steps(std::span<const SequenceUpdate> updates) override {
    ranks_.drop_in_flight();
    in_flight_ = 0;
    pending_.clear();
    Replayer::lost_steps(updates);
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
      if (token == sequence.token) continue;
      result_.difference = {computed.id, sequence.sequence, sequence.token, token};
      return;
    }
    const auto is_token = [](TokenId id) { return id >= 0; };
    const auto all = std::ranges::count_if(recorded.sequences, is_token, &SequenceResult::token);
    const auto masked = std::ranges::count_if(recorded_.masked(computed.id), is_token);
    result_.num_masked += static_cast<std::uint64_t>(masked);
    result_.num_compared += static_cast<std::uint64_t>(all - masked);
  }

  RankGroup& ranks_;
  const std::int64_t vocab_size_;
  const RecordedTokens& recorded_;
  std::vector<TokenId> pending_;  // to be sampled in the newest step
  int in_flight_ = 0;
  Recomputation result_;
};

}  // namespace

Recomputation recompute(const Recording& recording, EngineConfig config, ModelFiles model) {
  const RecordingInfo& info = recording.info();
  if (!info.with_tokens) fail("the recording has no ids of tokens; it was made without --record-tokens");
  if (!info.from_start) fail("the recording has no beginning: it is the last part of what was");
  RecordedTokens recorded;
  const bool whole = recording.read(recorded);

  config.max_num_seqs = info.scheduler.max_num_seqs;
  config.max_num_batched_tokens = info.scheduler.max_num_batched_tokens;
  config.max_model_len = info.scheduler.max_model_len;
  config.block_size = info.scheduler.layout.block_size;
  if (const int most = recorded.most_logprobs(); config.max_logprobs >= 0 && most > config.max_logprobs)
    config.max_logprobs = most <= kMaxTopLogprobs ? most : -1;
  const EngineSetup setup{std::move(config), std::move(model)};
  const std::unique_ptr<RankGroup> ranks = make_rank_group(setup);
  ranks->open();
  const RuntimeConfig& runtime = ranks->resolve();
  check_fits(runtime, info.scheduler, recorded);
  ranks->load();
  ranks->capture_graphs();

  Computation computation(*ranks, runtime.spec.vocab_size, info, recorded);
  RecordingReader reader(recording);
  while (!computation.ended() && reader.next(computation)) {
  }
  ranks->drop_in_flight();
  return computation.result(whole);
}

}  // namespace quire
