#include "scheduler/scheduler.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kMaxModelLen = 1 << 30;  // so that sums of a few lengths stay integers

SchedulerConfig validated(SchedulerConfig config) {
  if (config.max_num_seqs < 1) fail("max-num-seqs is {}; it must be at least 1", config.max_num_seqs);
  if (config.max_num_batched_tokens < 1)
    fail("max-num-batched-tokens is {}; it must be at least 1", config.max_num_batched_tokens);
  if (config.max_model_len < 2 || config.max_model_len > kMaxModelLen)
    fail("max-model-len is {}; it must be from 2, a prompt token and an output token, to {}",
         config.max_model_len, kMaxModelLen);
  const int size = config.block_size;
  if (size < 8 || size > 256 || (size & (size - 1)) != 0)
    fail("block-size is {}; it must be a power of two from 8 to 256", size);
  if (config.num_blocks < 1) fail("the KV cache has no room for a block of {} tokens", size);
  if (!config.hash_seed) {
    std::random_device device;
    config.hash_seed = (std::uint64_t{device()} << 32) | device();
  }
  return config;
}

}  // namespace

struct Scheduler::Draft {
  StepPlan plan;
  PlannedStep step;
  int budget = 0;  // tokens left
};

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)),
      pool_(config_.num_blocks),
      prefix_cache_(pool_, config_.block_size, *config_.hash_seed, config_.hash_bits),
      free_slots_(static_cast<std::size_t>(config_.max_num_seqs)) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);  // the lowest is taken first
}

void Scheduler::add(SequenceRequest request) {
  const auto num_prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t capacity = std::int64_t{config_.num_blocks} * config_.block_size;
  if (num_prompt == 0) fail("the prompt is empty; at least one token is needed");
  if (request.max_tokens < 1) fail("max_tokens is {}; it must be at least 1", request.max_tokens);
  if (num_prompt >= config_.max_model_len)
    fail("the prompt has {} tokens; with a context of {} tokens it may have at most {}", num_prompt,
         config_.max_model_len, config_.max_model_len - 1);
  if (num_prompt > capacity)
    fail("the prompt has {} tokens; the whole KV cache holds {}", num_prompt, capacity);

  const SequenceId id = request.id;
  const auto [place, is_new] = sequences_.try_emplace(id, BlockTable(pool_, config_.block_size));
  QUIRE_CHECK(is_new, "sequence {} exists", id);
  Sequence& sequence = place->second;
  sequence.tokens = std::move(request.prompt);
  sequence.request = std::move(request);
  sequence.arrival = ++last_arrival_;
  sequence.num_prompt = static_cast<int>(num_prompt);
  // The last token is never computed, so it needs no place in the cache.
  sequence.max_length = static_cast<int>(std::min(
      {num_prompt + sequence.request.max_tokens, std::int64_t{config_.max_model_len}, capacity + 1}));
  waiting_.push_back(&sequence);
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.state == SequenceState::kRetiring) return false;
  Sequence& sequence = found->second;
  if (sequence.state == SequenceState::kRunning) {
    end(sequence);
  } else {
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), &sequence));
    sequences_.erase(found);
    admission_blocked_ = false;
  }
  return true;
}

std::optional<StepPlan> Scheduler::schedule() {
  Draft draft;
  draft.budget = config_.max_num_batched_tokens;
  const std::size_t most = std::min(running_.size() + waiting_.size(), free_slots_.size() + running_.size());
  draft.plan.sequences.reserve(most);
  draft.step.sequences.reserve(most);
  plan_running(draft);
  // Newcomers wait while a running sequence drains to give its blocks back: it is the next to be preempted.
  if (running_.empty() || !running_.back()->yielding) admit_waiting(draft);
  if (draft.plan.sequences.empty()) return std::nullopt;
  // Only now, so that a step finds no block that it writes itself: what is hit, an earlier step has written.
  for (const PlannedSequence& planned : draft.step.sequences) index_full_blocks(*planned.sequence);
  draft.plan.id = draft.step.id = ++last_plan_;
  draft.plan.num_tokens = config_.max_num_batched_tokens - draft.budget;
  in_flight_.push_back(std::move(draft.step));
  return std::move(draft.plan);
}

void Scheduler::plan_running(Draft& draft) {
  const auto is_decode = [this](const Sequence* sequence) { return span_limit(*sequence) == 1; };
  auto decodes_left = static_cast<int>(std::count_if(running_.begin(), running_.end(), is_decode));
  for (std::size_t i = 0; i < running_.size() && draft.budget > 0; ++i) {  // preemption takes from the end
    Sequence& sequence = *running_[i];
    const int wanted = span_limit(sequence);
    if (wanted == 0) continue;
    if (wanted == 1) --decodes_left;
    // Every decode behind gets its token; yet the older one always gets on.
    const int affordable = std::max(1, draft.budget - decodes_left);
    const int num_tokens = make_room(sequence, std::min(wanted, affordable));
    if (num_tokens > 0) plan_span(sequence, num_tokens, false, draft);
  }
}

void Scheduler::admit_waiting(Draft& draft) {
  while (!waiting_.empty() && !admission_blocked_ && draft.budget > 0 && !free_slots_.empty()) {
    Sequence& sequence = *waiting_.front();
    if (!admit(sequence)) {
      admission_blocked_ = true;
      return;
    }
    waiting_.pop_front();
    running_.push_back(&sequence);
    plan_span(sequence, std::min(span_limit(sequence), draft.budget), true, draft);
  }
}

// Gives a waiting sequence its slot and the cached head of its prompt, if blocks are free for all its tokens
// and for what those running will take next. The last known token is always computed, for its logits.
bool Scheduler::admit(Sequence& sequence) {
  const SequenceRequest& request = sequence.request;
  const bool look_up = config_.enable_prefix_caching && !of_every_position(request.prompt_output);
  std::vector<BlockId> hits;
  if (look_up)
    hits =
        prefix_cache_.match(std::span(sequence.tokens).first(sequence.tokens.size() - 1), request.cache_salt);
  const auto num_shared = static_cast<int>(
      std::count_if(hits.begin(), hits.end(), [this](BlockId block) { return pool_.ref_count(block) > 0; }));
  int num_needed = blocks_ahead(sequence) - num_shared;
  for (const Sequence* other : running_) num_needed += blocks_ahead(*other);
  if (num_needed > pool_.num_free()) return false;

  sequence.state = SequenceState::kRunning;
  sequence.slot = free_slots_.back();
  free_slots_.pop_back();
  for (const BlockId block : hits) sequence.table.share(block);
  sequence.num_indexed = sequence.table.size();
  sequence.num_planned = sequence.table.size() * config_.block_size;
  sequence.last_index = hits.empty() ? PrefixCache::Link{} : prefix_cache_.link(hits.back());
  if (sequence.num_cached_tokens < 0) {
    sequence.num_cached_tokens = sequence.num_planned;
    if (look_up) prefix_cache_queries_ += sequence.num_prompt;
    prefix_cache_hits_ += sequence.num_planned;
  }
  return true;
}

// How many tokens the next span may have; 0 if the sequence is not to be planned.
int Scheduler::span_limit(const Sequence& sequence) const {
  if (sequence.yielding || sequence.complete()) return 0;
  int last = sequence.length();
  if (of_every_position(sequence.request.prompt_output)) {
    // A span has one kind of output; what was handed out before a preemption is not wanted again.
    if (sequence.num_planned < sequence.num_prompt_logits)
      last = std::min(last, sequence.num_prompt_logits);
    else if (sequence.num_planned < sequence.num_prompt)
      last = std::min(last, sequence.num_prompt);
  }
  return last - sequence.num_planned;
}

void Scheduler::plan_span(Sequence& sequence, int num_tokens, bool start, Draft& draft) {
  SequencePlan& plan = draft.plan.sequences.emplace_back();
  plan.sequence = sequence.request.id;
  plan.slot = sequence.slot;
  if (start) {
    plan.start = sequence.request.sampling;
    if (plan.start->needs_history()) {
      plan.history = sequence.tokens;
      plan.num_prompt = sequence.num_prompt;
    }
  }
  plan.first_position = sequence.num_planned;
  plan.num_tokens = num_tokens;
  const int last = sequence.num_planned + num_tokens;
  if (!sequence.has_sampled || sequence.num_unplanned() > 1)
    plan.tokens.assign(sequence.tokens.begin() + sequence.num_planned, sequence.tokens.begin() + last);

  const int first_changed = sequence.table.prepare_write(sequence.num_planned, last, draft.plan.block_copies);
  plan.first_new_block = start ? 0 : first_changed;
  const auto blocks = sequence.table.blocks().subspan(static_cast<std::size_t>(plan.first_new_block));
  plan.new_blocks.assign(blocks.begin(), blocks.end());

  plan.sample = last == sequence.length();
  plan.mask_stop = plan.sample && sequence.num_output() < sequence.request.min_tokens;
  const OutputKind prompt_output = sequence.request.prompt_output;
  const bool outputs_prompt = of_every_position(prompt_output) &&
                              sequence.num_planned >= sequence.num_prompt_logits &&
                              sequence.num_planned < sequence.num_prompt;
  plan.output = outputs_prompt ? prompt_output : plan.sample ? OutputKind::kLast : OutputKind::kNone;
  if (plan.output == OutputKind::kLogprobs && last < sequence.num_prompt)
    plan.next_token = sequence.tokens[static_cast<std::size_t>(last)];

  draft.step.sequences.push_back({&sequence, num_tokens, plan.output, plan.sample});
  draft.budget -= num_tokens;
  sequence.num_planned = last;
  sequence.num_pending += plan.sample ? 1 : 0;
  sequence.has_sampled |= plan.sample;
  ++sequence.num_in_flight;
}

// How many of the next tokens of a running sequence have a place. If not even one has, the youngest gives its
// blocks up; if that one is in flight, or is this very sequence, the answer is 0: it waits for results, or
// for the older ones to end.
int Scheduler::make_room(const Sequence& sequence, int wanted) {
  while (true) {
    const int writable = sequence.table.writable(sequence.num_planned, wanted);
    Sequence& youngest = *running_.back();
    if (writable > 0 || &youngest == &sequence) return writable;
    if (youngest.num_in_flight > 0) {
      youngest.yielding = true;
      return 0;
    }
    preempt_youngest();
  }
}

void Scheduler::preempt_youngest() {
  Sequence& sequence = *running_.back();
  QUIRE_CHECK(sequence.num_in_flight == 0);
  running_.pop_back();
  waiting_.push_front(&sequence);
  give_back(sequence);
  sequence.state = SequenceState::kWaiting;
  sequence.yielding = sequence.has_sampled = false;
  sequence.num_planned = 0;
  ++num_preemptions_;
}

// The blocks a sequence will take for the tokens it has and for the next block_size, unless it ends earlier.
// Never more than the whole cache has.
int Scheduler::blocks_ahead(const Sequence& sequence) const {
  const int most = blocks_for(sequence.max_length - 1);
  return std::max(0, std::min(most, blocks_for(sequence.length()) + 1) - sequence.table.size());
}

// Enters the blocks that are full, as far as their tokens are known, once their computation is planned: steps
// run in order, so every later step may read them, even if this sequence is aborted meanwhile.
void Scheduler::index_full_blocks(Sequence& sequence) {
  if (!config_.enable_prefix_caching) return;
  const auto size = static_cast<std::size_t>(config_.block_size);
  const int num_tokens = std::min(sequence.num_planned, static_cast<int>(sequence.tokens.size()));
  for (; sequence.num_indexed < num_tokens / config_.block_size; ++sequence.num_indexed) {
    const auto i = static_cast<std::size_t>(sequence.num_indexed);
    sequence.last_index = prefix_cache_.insert(
        sequence.table.blocks()[i], {sequence.last_index, std::span(sequence.tokens).subspan(i * size, size),
                                     sequence.request.cache_salt});
  }
}

std::vector<SequenceUpdate> Scheduler::apply(StepResult result) {
  QUIRE_CHECK(!in_flight_.empty() && result.id == in_flight_.front().id, "result {} is not the oldest's",
              result.id);
  QUIRE_CHECK(result.sequences.size() == in_flight_.front().sequences.size());
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const PlannedSequence& planned = in_flight_.front().sequences[i];
    const TokenId token = result.sequences[i].token;
    QUIRE_CHECK(result.sequences[i].sequence == planned.sequence->request.id);
    QUIRE_CHECK(planned.sample ? token >= 0 || token == SequenceResult::kInvalidLogits
                               : token == SequenceResult::kNoToken);
  }
  const PlannedStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::vector<SequenceUpdate> updates;
  updates.reserve(step.sequences.size());
  for (std::size_t i = 0; i < step.sequences.size(); ++i)
    book(step.sequences[i], result.sequences[i], updates);
  return updates;
}

void Scheduler::book(const PlannedSequence& planned, SequenceResult& result,
                     std::vector<SequenceUpdate>& updates) {
  Sequence& sequence = *planned.sequence;
  --sequence.num_in_flight;
  sequence.num_pending -= planned.sample ? 1 : 0;
  if (sequence.state == SequenceState::kRetiring) {
    if (sequence.num_in_flight == 0) end(sequence);
    return;
  }
  SequenceUpdate update;
  update.id = sequence.request.id;
  update.num_cached_tokens = sequence.num_cached_tokens;
  update.logprobs = std::move(result.logprobs);
  if (of_every_position(planned.output)) {
    update.logits = std::move(result.logits);
    update.prompt_logprobs = std::move(result.prompt_logprobs);
    sequence.num_prompt_logits += planned.num_tokens;
  }
  if (result.token == SequenceResult::kInvalidLogits) {
    update.finish = FinishReason::kError;
    // Its keys and values may be as broken as its logits.
    for (const BlockId block : sequence.table.blocks()) prefix_cache_.erase(block);
  } else if (planned.sample) {
    update.token = result.token;
    sequence.tokens.push_back(result.token);
    index_full_blocks(sequence);
    update.finish = finish_reason(sequence);
  }
  const bool ended = update.finish != FinishReason::kNone;
  if (planned.sample || of_every_position(planned.output)) updates.push_back(std::move(update));
  if (ended)
    end(sequence);
  else if (sequence.yielding && sequence.num_in_flight == 0)
    preempt_youngest();
}

// What the token just learned ends, if anything.
FinishReason Scheduler::finish_reason(const Sequence& sequence) const {
  const SequenceRequest& request = sequence.request;
  const auto length = static_cast<int>(sequence.tokens.size());
  const auto& stop_ids = request.sampling.stop_ids;
  if (length - sequence.num_prompt > request.min_tokens &&
      std::find(stop_ids.begin(), stop_ids.end(), sequence.tokens.back()) != stop_ids.end())
    return FinishReason::kStop;
  return length == sequence.max_length ? FinishReason::kLength : FinishReason::kNone;
}

// Ends a sequence that holds a slot, at once or when the last step that uses it has been applied.
void Scheduler::end(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning)
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  sequence.state = SequenceState::kRetiring;
  if (sequence.num_in_flight > 0) return;
  give_back(sequence);
  const SequenceId id = sequence.request.id;
  sequences_.erase(id);
}

void Scheduler::give_back(Sequence& sequence) {
  sequence.table.clear();
  free_slots_.push_back(std::exchange(sequence.slot, -1));
  admission_blocked_ = false;
}

std::vector<SequenceUpdate> Scheduler::fail_in_flight() {
  std::vector<SequenceId> lost;
  for (const PlannedStep& step : in_flight_)
    for (const PlannedSequence& planned : step.sequences) lost.push_back(planned.sequence->request.id);
  in_flight_.clear();
  prefix_cache_.clear();
  std::vector<SequenceUpdate> updates;
  for (const SequenceId id : lost) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;  // it was in several steps
    Sequence& sequence = found->second;
    if (sequence.state == SequenceState::kRunning) {
      SequenceUpdate& update = updates.emplace_back();
      update.id = id;
      update.finish = FinishReason::kError;
      update.num_cached_tokens = sequence.num_cached_tokens;
    }
    sequence.num_in_flight = 0;
    end(sequence);
  }
  return updates;
}

std::vector<SequenceUpdate> Scheduler::fail_all() {
  std::vector<SequenceUpdate> updates = fail_in_flight();
  std::vector<SequenceId> left;
  for (const auto& [id, sequence] : sequences_) left.push_back(id);
  for (const SequenceId id : left) {
    if (!abort(id)) continue;
    SequenceUpdate& update = updates.emplace_back();
    update.id = id;
    update.finish = FinishReason::kError;
  }
  return updates;
}

SchedulerStats Scheduler::stats() const {
  return {.num_running = config_.max_num_seqs - static_cast<int>(free_slots_.size()),
          .num_waiting = static_cast<int>(waiting_.size()),
          .num_blocks = pool_.num_blocks(),
          .num_free_blocks = pool_.num_free(),
          .num_preemptions = num_preemptions_,
          .prefix_cache_queries = prefix_cache_queries_,
          .prefix_cache_hits = prefix_cache_hits_};
}

}  // namespace quire
