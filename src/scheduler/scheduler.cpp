#include "scheduler/scheduler.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <random>
#include <span>
#include <utility>

#include "base/error.h"

namespace quire {
namespace {

constexpr int kMostStepTokens = 1 << 20;

SchedulerConfig validated(SchedulerConfig config) {
  if (config.max_num_seqs < 1) fail("max-num-seqs is {}; it must be at least 1", config.max_num_seqs);
  if (config.max_num_batched_tokens < 1 || config.max_num_batched_tokens > kMostStepTokens)
    fail("max-num-batched-tokens is {}; it must be from 1 to {}", config.max_num_batched_tokens,
         kMostStepTokens);
  if (config.max_span < 0)
    fail("long-prefill-token-threshold is {}; it must be at least 1, or 0 for no limit", config.max_span);
  constexpr int kMostTokens = CacheLayout::kMaxTokens;
  if (config.max_model_len < 2 || config.max_model_len > kMostTokens)
    fail("max-model-len is {}; it must be from 2, a prompt token and an output token, to {}",
         config.max_model_len, kMostTokens);
  const int size = config.layout.block_size;
  if (size < 8 || size > 256 || (size & (size - 1)) != 0)
    fail("block-size is {}; it must be a power of two from 8 to 256", size);
  if (config.num_host_blocks < 0)
    fail("{} blocks of host memory; there can be none below 0", config.num_host_blocks);
  for (const int window : config.layout.windows)
    if (window < 0 || window > kMostTokens)
      fail("a sliding window of {} tokens; it must be from 1 to {}, or 0 for none", window, kMostTokens);
  if (config.num_blocks < 1) fail("the KV cache has no room for a block of {} tokens", size);
  if (!config.hash_seed) {
    std::random_device device;
    config.hash_seed = (std::uint64_t{device()} << 32) | device();
  }
  return config;
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)),
      longest_alone_(config_.layout.longest(config_.num_blocks)),
      pool_(config_.num_blocks),
      host_pool_(config_.num_host_blocks),
      prefix_cache_(pool_, config_.layout, *config_.hash_seed, config_.hash_bits),
      free_seats_(static_cast<std::size_t>(config_.max_num_seqs)) {
  std::iota(free_seats_.rbegin(), free_seats_.rend(), 0);  // the lowest is taken first
}

int Scheduler::add(std::shared_ptr<const SequenceRequest> request) {
  check_fits(*request);
  for (int i = 0; i < request->num_outputs; ++i) add_sequence(request, i);
  const Sequence& first = sequences_.at(request->id);
  return first.max_length - first.num_prompt;
}

void Scheduler::check_fits(const SequenceRequest& request) const {
  const std::int64_t num_prompt = std::ssize(request.prompt);
  if (num_prompt == 0) fail("the prompt is empty; at least one token is needed");
  if (request.max_tokens < 1) fail("max_tokens is {}; it must be at least 1", request.max_tokens);
  // Where the prompt is all, the token behind it is none.
  const int max_length = config_.max_model_len + (is_pooled(request.prompt_output) ? 1 : 0);
  if (num_prompt >= max_length)
    fail("the prompt has {} tokens; with a context of {} tokens it may have at most {}", num_prompt,
         config_.max_model_len, max_length - 1);
  if (num_prompt > longest_alone_)
    fail("the prompt has {} tokens; the whole KV cache holds {}", num_prompt, longest_alone_);
  if (request.beam_width > config_.max_num_seqs)
    fail("beam_width is {}; it must be at most max-num-seqs, {}", request.beam_width, config_.max_num_seqs);
}

void Scheduler::add_sequence(const std::shared_ptr<const SequenceRequest>& request, int index) {
  const SequenceId id = request->id + static_cast<SequenceId>(index);
  const auto [place, is_new] = sequences_.try_emplace(id, BlockTable(pool_, config_.layout));
  QUIRE_CHECK(is_new, "sequence {} exists", id);
  Sequence& sequence = place->second;
  sequence.id = id;
  sequence.request = request;
  sequence.index = index;
  sequence.priority = config_.policy == SchedulingPolicy::kFcfs ? 0 : request->priority;
  sequence.arrival = ++last_arrival_;
  last_arrival_ += static_cast<std::uint64_t>(std::max(request->beam_width, 1)) - 1;
  sequence.num_prompt = static_cast<int>(request->prompt.size());
  // The last token is never computed, so it needs no place in the cache.
  const int behind = sequence.is_pooled() ? 1 : 0;  // where the prompt is all
  const std::int64_t wanted = sequence.num_prompt + std::int64_t{behind ? 1 : request->max_tokens};
  sequence.max_length = static_cast<int>(
      std::min({wanted, std::int64_t{config_.max_model_len} + behind, std::int64_t{longest_alone_} + 1}));
  sequence.salt = prefix_cache_.salt_of(request->cache_salt);
  if (request->deadline) deadlines_.emplace(*request->deadline, id);
  count_queued(sequence, 1);
  enqueue(sequence);
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.state == SequenceState::kRetiring) return false;
  Sequence& sequence = found->second;
  if (sequence.state == SequenceState::kRunning) {
    end(sequence);
  } else if (sequence.state == SequenceState::kParked) {
    forget(sequence);
  } else {
    waiting_.erase(&sequence);
    if (sequence.num_cached_tokens < 0) count_queued(sequence, -1);
    forget(sequence);
    admission_blocked_ = false;
  }
  return true;
}

std::vector<SequenceId> Scheduler::abort_with_siblings(SequenceId first) {
  const auto belongs = [first](const auto& entry) {
    return entry.first == first || (first != 0 && entry.second.request->first_sibling == first);
  };
  std::vector<SequenceId> members;
  for (auto it = sequences_.lower_bound(first); it != sequences_.end() && belongs(*it); ++it)
    members.push_back(it->first);
  std::erase_if(members, [this](SequenceId id) { return !abort(id); });
  return members;
}

std::vector<SequenceId> Scheduler::expire(Clock::time_point now) {
  std::vector<SequenceId> late;
  for (const auto& [deadline, id] : deadlines_) {
    if (deadline > now) break;
    late.push_back(id);
  }
  std::erase_if(late, [this](SequenceId id) { return !abort(id); });
  return late;
}

std::optional<StepPlan> Scheduler::schedule() {
  OpenPlan open;
  open.budget = config_.max_num_batched_tokens;
  const std::size_t most = std::min(running_.size() + waiting_.size(), free_seats_.size() + running_.size());
  open.plan.sequences.reserve(most);
  QUIRE_CHECK(open_step_.sequences.empty(), "a step that failed was not dropped");
  open_step_.sequences.reserve(most);
  if (!plan_suspect(open)) plan_by_precedence(open);
  if (open.plan.sequences.empty()) plan_suspect(open);  // one may just have been admitted
  if (open.plan.sequences.empty()) return std::nullopt;
  // Only now, so that a step finds no block that it writes itself: what is hit, an earlier step has written.
  for (const PlannedSequence& planned : open_step_.sequences) index_full_blocks(*planned.sequence);
  open.plan.id = open_step_.id = ++last_plan_;
  open.plan.saves = std::exchange(saves_, {});
  for (const BlockId block : std::exchange(open_step_.restored, {})) host_pool_.release(block);
  open.plan.num_tokens = config_.max_num_batched_tokens - open.budget;
  in_flight_.push_back(std::exchange(open_step_, {}));
  return std::move(open.plan);
}

// A suspect is planned for itself, with no other step in flight. True: nothing else is to be planned.
bool Scheduler::plan_suspect(OpenPlan& open) {
  const auto is_suspect = [](const Sequence* sequence) { return sequence->suspect; };
  const auto found = std::find_if(running_.begin(), running_.end(), is_suspect);
  if (found == running_.end()) return false;
  if (!in_flight_.empty()) return true;
  plan_next(**found, open);
  return !open.plan.sequences.empty();
}

// Running sequences and those waiting take their turn by precedence. First come, first served, all running
// ones precede all waiting ones; under priorities one that waits may precede one that runs.
void Scheduler::plan_by_precedence(OpenPlan& open) {
  const auto is_decode = [this](const Sequence* sequence) {
    return !sequence->suspect && span_limit(*sequence) == 1;
  };
  open.decodes_left = static_cast<int>(std::count_if(running_.begin(), running_.end(), is_decode));
  for (std::size_t i = 0; open.budget > 0;) {  // preemption takes from the end
    if (waiting_is_next(i) && admit_next(i) && is_decode(running_[i])) ++open.decodes_left;
    if (i >= running_.size()) break;
    if (running_[i]->suspect || plan_next(*running_[i], open)) ++i;
  }
}

// False: planning it has failed, and it is gone.
bool Scheduler::plan_next(Sequence& sequence, OpenPlan& open) {
  const int wanted = span_limit(sequence);
  if (wanted == 0) return true;
  if (wanted == 1) --open.decodes_left;
  // Every decode behind gets its token; yet whoever comes first always gets on.
  const int affordable = std::max(1, open.budget - open.decodes_left);
  const int num_tokens = make_room(sequence, std::min(wanted, affordable));
  if (num_tokens == 0) return true;
  try {
    plan_span(sequence, num_tokens, open);
    return true;
  } catch (const std::exception& e) {
    planning_failures_.push_back({sequence.id, e.what()});
    end(sequence);
    return false;
  }
}

// How many tokens the next span may have; 0 if the sequence is not to be planned.
int Scheduler::span_limit(const Sequence& sequence) const {
  if (sequence.yielding || sequence.held || sequence.complete() || sequence.awaits_token()) return 0;
  // What it was forked from may be written in the very step that is being planned.
  if (!sequence.started && sequence.prompt_step > last_plan_) return 0;
  int last = sequence.length();
  if (of_every_position(sequence.prompt_output())) {
    // A span has one kind of output; what was handed out before a preemption is not wanted again.
    if (sequence.num_planned < sequence.num_prompt_logits)
      last = std::min(last, sequence.num_prompt_logits);
    else if (sequence.num_planned < sequence.num_prompt)
      last = std::min(last, sequence.num_prompt);
  }
  const int most = last - sequence.num_planned;
  return config_.max_span == 0 ? most : std::min(most, config_.max_span);
}

// What the next span yields, which ends with the sequence's last token or before.
OutputKind Scheduler::output_of(const Sequence& sequence, bool ends_text) {
  const OutputKind wanted = sequence.prompt_output();
  if (adds_up(wanted) && !ends_text) return OutputKind::kHiddenSum;
  const bool of_prompt =
      sequence.num_planned >= sequence.num_prompt_logits && sequence.num_planned < sequence.num_prompt;
  if (of_every_position(wanted) && of_prompt) return wanted;
  if (!ends_text) return OutputKind::kNone;
  return sequence.is_pooled() ? wanted : OutputKind::kLast;
}

// What may fail comes before the step knows of the sequence, so that a failure leaves nothing in it.
void Scheduler::plan_span(Sequence& sequence, int num_tokens, OpenPlan& open) {
  if (config_.on_plan) config_.on_plan(sequence.id);
  SequencePlan plan;
  plan.sequence = sequence.id;
  plan.seat = sequence.seat;
  if (!sequence.started) {
    plan.start = sequence.request->sampling;
    plan.start->seed += static_cast<std::uint64_t>(sequence.index);
    if (plan.start->needs_history()) {
      plan.history.assign(sequence.tokens().begin(), sequence.tokens().end());
      plan.num_prompt = sequence.num_prompt;
    }
  }
  plan.first_position = sequence.num_planned;
  plan.num_tokens = num_tokens;
  const int last = sequence.num_planned + num_tokens;
  if (!sequence.has_sampled || sequence.num_unplanned() > 1)
    plan.tokens.assign(sequence.tokens().begin() + sequence.num_planned, sequence.tokens().begin() + last);
  const bool ends_text = last == sequence.length();
  plan.sample = ends_text && !sequence.is_pooled();
  plan.mask_stop = plan.sample && sequence.num_output() < sequence.request->min_tokens;
  plan.output = output_of(sequence, ends_text);
  if (plan.output == OutputKind::kLogprobs && last < sequence.num_prompt)
    plan.next_token = sequence.tokens()[static_cast<std::size_t>(last)];
  prepare_write(sequence, plan, open);
  restore_blocks(sequence, open);

  sequence.started = true;
  if (sequence.num_planned < sequence.num_prompt && last >= sequence.num_prompt)
    sequence.prompt_step = last_plan_ + 1;
  sequence.num_planned = last;
  ++sequence.num_in_flight;
  sequence.num_pending += ends_text ? 1 : 0;
  sequence.has_sampled |= plan.sample;
  open.budget -= num_tokens;
  open_step_.sequences.push_back({&sequence, num_tokens, last, plan.output, ends_text});
  open.plan.sequences.push_back(std::move(plan));
}

// Gives the sequence the blocks that its span writes, and tells the plan of them.
void Scheduler::prepare_write(Sequence& sequence, SequencePlan& plan, OpenPlan& open) {
  const bool start = plan.start.has_value();
  if (start) forget_block_to_write(sequence);
  std::vector<BlockCopy> copies;  // of one row at most
  const int first_changed =
      sequence.table.prepare_write(plan.first_position, plan.first_position + plan.num_tokens, copies);
  for (std::size_t i = 0; sequence.num_in_flight > 0 && i < copies.size(); ++i) {
    in_flight_.back().replaced.push_back(copies[i].from);
    pool_.acquire(copies[i].from);
  }
  plan.first_new_row = start ? config_.layout.num_outside_all(sequence.table.position()) : first_changed;
  for (int row = plan.first_new_row; row < sequence.table.size(); ++row) {
    const auto blocks = sequence.table.row(row);
    plan.new_blocks.insert(plan.new_blocks.end(), blocks.begin(), blocks.end());
  }
  open.plan.block_copies.insert(open.plan.block_copies.end(), copies.begin(), copies.end());
}

// Blocks that no step in flight attends to, nor any position from `position` on.
void Scheduler::release_outside(Sequence& sequence, int position) {
  if (config_.layout.leaves_rows(sequence.table.position(), position)) admission_blocked_ = false;
  sequence.table.release_outside(position);
}

void Scheduler::release_replaced(PlannedStep& step) {
  if (!step.replaced.empty()) admission_blocked_ = false;
  for (const BlockId block : std::exchange(step.replaced, {})) pool_.release(block);
}

// A fork computes the last token of its prompt again. If that lies in full blocks, which nobody else holds
// any more, they are written in place: out of the cache until the step is planned.
void Scheduler::forget_block_to_write(const Sequence& sequence) {
  const int index = sequence.num_planned / config_.layout.block_size;
  if (index == sequence.table.size()) return;
  for (const BlockId block : sequence.table.row(index)) {
    if (pool_.ref_count(block) > 1) continue;  // then a copy is written
    prefix_cache_.erase(block);
    pool_.renew(block);  // what follows its old contents is not to be found behind the new ones
  }
}

// How many of the next tokens of a running sequence have a place. If not even one has, the last one gives its
// blocks up; if that one is in flight, or is this very sequence, the answer is 0: it waits for results, or
// for the older ones to end. So it does where its own steps in flight have blocks that leave its window. A
// beam takes what held ones of its own search have before it waits for itself.
int Scheduler::make_room(const Sequence& sequence, int wanted) {
  while (true) {
    const int writable = sequence.table.writable(sequence.num_planned, wanted);
    Sequence& last = *running_.back();
    if (writable > 0) return writable;
    const bool gives_back = config_.layout.leaves_rows(sequence.table.position(), sequence.num_planned);
    if (gives_back && sequence.num_in_flight > 0) return 0;
    if (&last == &sequence) {
      if (strip_held_sibling(sequence)) continue;
      return 0;
    }
    if (last.num_in_flight > 0) {
      last.yielding = true;
      return 0;
    }
    preempt_last();
  }
}

// Enters the rows that are full, as far as their tokens are known, once their computation is planned: steps
// run in order, so every later step may read them, even if this sequence is aborted meanwhile.
void Scheduler::index_full_blocks(Sequence& sequence) {
  if (!config_.enable_prefix_caching) return;
  const auto size = static_cast<std::size_t>(config_.layout.block_size);
  const int num_tokens = std::min(sequence.num_planned, static_cast<int>(sequence.tokens().size()));
  for (; sequence.num_indexed < num_tokens / config_.layout.block_size; ++sequence.num_indexed) {
    const auto i = static_cast<std::size_t>(sequence.num_indexed);
    const PrefixCache::Key key = {sequence.last_index, sequence.tokens().subspan(i * size, size),
                                  sequence.salt};
    const auto link = prefix_cache_.insert(sequence.table.row(sequence.num_indexed), key);
    if (!link) return;  // a row before its windows, which it never had
    sequence.last_index = *link;
  }
}

std::vector<SequenceUpdate> Scheduler::apply(StepResult result) {
  QUIRE_CHECK(!in_flight_.empty() && result.id == in_flight_.front().id, "result {} is not the oldest's",
              result.id);
  QUIRE_CHECK(result.sequences.size() == in_flight_.front().sequences.size());
  for (std::size_t i = 0; i < result.sequences.size(); ++i) {
    const PlannedSequence& planned = in_flight_.front().sequences[i];
    QUIRE_CHECK(result.sequences[i].sequence == planned.sequence->id);
    QUIRE_CHECK(is_answer(planned, result.sequences[i].token));
  }
  PlannedStep step = std::move(in_flight_.front());
  in_flight_.pop_front();
  release_replaced(step);
  std::vector<SequenceUpdate> updates;
  updates.reserve(step.sequences.size());
  for (std::size_t i = 0; i < step.sequences.size(); ++i)
    book(step.sequences[i], result.sequences[i], updates);
  return updates;
}

// Whether the token is what the plan has asked for.
bool Scheduler::is_answer(const PlannedSequence& planned, TokenId token) {
  if (planned.ends_text && (token == SequenceResult::kInvalidLogits || token == SequenceResult::kNoneLeft))
    return true;
  return planned.ends_text && !is_pooled(planned.output) ? token >= 0 : token == SequenceResult::kNoToken;
}

void Scheduler::book(const PlannedSequence& planned, SequenceResult& result,
                     std::vector<SequenceUpdate>& updates) {
  Sequence& sequence = *planned.sequence;
  --sequence.num_in_flight;
  sequence.num_pending -= planned.ends_text ? 1 : 0;
  sequence.suspect &= !planned.ends_text;
  if (result.token == SequenceResult::kInvalidLogits) {
    // Its keys and values may be as broken as its logits, those that it has given back included.
    prefix_cache_.erase_chain(sequence.tokens(), sequence.salt);
    for (const BlockId block : sequence.table.held()) prefix_cache_.erase(block);
  }
  release_outside(sequence, planned.last);
  if (sequence.state == SequenceState::kRetiring) {
    if (sequence.num_in_flight == 0) end(sequence);
    return;
  }
  SequenceUpdate update;
  update.id = sequence.id;
  update.num_cached_tokens = sequence.num_cached_tokens;
  update.logprobs = std::move(result.logprobs);
  if (of_every_position(planned.output)) {
    update.logits = std::move(result.logits);
    update.prompt_logprobs = std::move(result.prompt_logprobs);
    sequence.num_prompt_logits += planned.num_tokens;
  }
  if (result.token == SequenceResult::kInvalidLogits) {
    update.finish = FinishReason::kError;
    ++num_invalid_logits_;
  } else if (result.token == SequenceResult::kNoneLeft) {
    update.finish = FinishReason::kError;
    update.none_left = true;
  } else if (planned.ends_text && sequence.is_pooled()) {
    update.hidden = std::move(result.hidden);
    update.finish = FinishReason::kStop;
  } else if (planned.ends_text && sequence.is_beam()) {
    sequence.held = true;
    admission_blocked_ = false;  // it could give its blocks to another one of its search
  } else if (planned.ends_text) {
    update.token = result.token;
    sequence.append(result.token);
    index_full_blocks(sequence);
    update.finish = finish_reason(sequence);
  }
  const bool ended = update.finish != FinishReason::kNone;
  if (planned.ends_text || of_every_position(planned.output)) updates.push_back(std::move(update));
  if (ended)
    end(sequence);
  else if (sequence.yielding && sequence.num_in_flight == 0)
    preempt_last();
}

// What the token just learned ends, if anything.
FinishReason Scheduler::finish_reason(const Sequence& sequence) const {
  const SequenceRequest& request = *sequence.request;
  const auto length = static_cast<int>(sequence.tokens().size());
  const auto& stop_ids = request.sampling.stop_ids;
  if (length - sequence.num_prompt > request.min_tokens &&
      std::find(stop_ids.begin(), stop_ids.end(), sequence.tokens().back()) != stop_ids.end())
    return FinishReason::kStop;
  return length == sequence.max_length ? FinishReason::kLength : FinishReason::kNone;
}

// Ends a sequence that holds a seat, at once or when the last step that uses it has been applied.
void Scheduler::end(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning)
    running_.erase(std::find(running_.begin(), running_.end(), &sequence));
  sequence.state = SequenceState::kRetiring;
  if (sequence.num_in_flight > 0) return;
  give_back(sequence);
  forget(sequence);
}

void Scheduler::give_back(Sequence& sequence) {
  sequence.table.clear();
  free_seats_.push_back(std::exchange(sequence.seat, -1));
  admission_blocked_ = false;
}

void Scheduler::forget(Sequence& sequence) {
  forget_saved(sequence.saved, 0);
  if (const auto& deadline = sequence.request->deadline) deadlines_.erase({*deadline, sequence.id});
  sequences_.erase(sequence.id);
}

SchedulerStats Scheduler::stats() const {
  return {.num_running = config_.max_num_seqs - static_cast<int>(free_seats_.size()),
          .num_waiting = static_cast<int>(waiting_.size()),
          .num_queued_requests = num_queued_requests_,
          .num_queued_tokens = num_queued_tokens_,
          .num_blocks = pool_.num_blocks(),
          .num_free_blocks = pool_.num_free(),
          .num_preemptions = num_preemptions_,
          .num_saved_blocks = num_saved_blocks_,
          .num_restored_blocks = num_restored_blocks_,
          .num_host_blocks = host_pool_.num_blocks(),
          .num_free_host_blocks = host_pool_.num_free(),
          .prefix_cache_queries = prefix_cache_queries_,
          .prefix_cache_hits = prefix_cache_hits_,
          .num_invalid_logits = num_invalid_logits_};
}

}  // namespace quire
