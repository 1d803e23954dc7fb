#include "scheduler/scheduler.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
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
  if (config.max_span == 0) config.max_span = kMostTokens;
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
  QUIRE_CHECK(config.num_state_slots == 0 ||
              (config.layout.state_interval > 0 && config.layout.state_interval % size == 0));
  if (config.num_blocks < 1) fail("the KV cache has no room for a block of {} tokens", size);
  if (!config.hash_seed) {
    std::random_device device;
    config.hash_seed = (std::uint64_t{device()} << 32) | device();
  }
  return config;
}

// Of a step in which it was.
SequenceUpdate update_of(const Sequence& sequence) {
  return {
      .id = sequence.id, .num_cached_tokens = sequence.num_cached_tokens, .cache_end = sequence.cache_end};
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(validated(config)),
      longest_alone_(config_.layout.longest(config_.num_blocks)),
      cache_(config_.layout, config_, config_.enable_prefix_caching, *config_.hash_seed, config_.hash_bits),
      free_seats_(static_cast<std::size_t>(config_.max_num_seqs)) {
  std::iota(free_seats_.rbegin(), free_seats_.rend(), 0);  // the lowest is taken first
  running_.reserve(free_seats_.size());
}

int Scheduler::add(std::shared_ptr<const SequenceRequest> request) {
  check_fits(*request);
  for (int i = 0; i < request->num_outputs; ++i) add_sequence(request, i);
  tell([&](SchedulerObserver& observer) { observer.added(*request); });
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
  const auto [place, is_new] = sequences_.try_emplace(id, cache_.new_blocks(request->cache_salt));
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
  if (request->deadline) deadlines_.emplace(*request->deadline, id);
  queue_.push(sequence);
}

bool Scheduler::abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.state == SequenceState::kRetiring) return false;
  Sequence& sequence = found->second;
  if (sequence.state == SequenceState::kRunning) {
    end(sequence);
  } else {
    queue_.remove(sequence);
    forget(sequence);
  }
  tell([&](SchedulerObserver& observer) { observer.aborted(id); });
  return true;
}

std::vector<SequenceId> Scheduler::abort_with_siblings(SequenceId first) {
  const auto belongs = [first](const auto& entry) {
    return entry.first == first || (first != 0 && entry.second.request->first_sibling == first);
  };
  std::vector<SequenceId> ended;
  for (auto next = sequences_.lower_bound(first); next != sequences_.end() && belongs(*next); ++next)
    ended.push_back(next->first);
  std::erase_if(ended, [this](SequenceId id) { return !abort(id); });
  return ended;
}

std::vector<SequenceId> Scheduler::expire(TimePoint now) {
  std::vector<SequenceId> late;
  for (const auto& [deadline, id] : deadlines_) {
    if (deadline > now) break;
    late.push_back(id);
  }
  std::erase_if(late, [this](SequenceId id) { return !abort(id); });
  return late;
}

std::vector<SequenceUpdate> Scheduler::apply(StepResult result) {
  std::vector<SequenceUpdate> updates;
  updates.reserve(result.sequences.size());
  const std::vector<PlannedSteps::Span> spans = steps_.take_oldest(result);
  if (cache_.apply_step()) queue_.unblock();
  for (std::size_t i = 0; i < spans.size(); ++i) book(spans[i], result.sequences[i], updates);
  tell([&](SchedulerObserver& observer) { observer.applied(result, updates); });
  return updates;
}

void Scheduler::book(const PlannedSteps::Span& span, SequenceResult& result,
                     std::vector<SequenceUpdate>& updates) try {
  Sequence& sequence = *span.sequence;
  sequence.suspect &= !span.ends_text;
  if (result.token == SequenceResult::kInvalidLogits) cache_.distrust(sequence.blocks, sequence.tokens());
  if (sequence.blocks.table.release_outside(span.last)) queue_.unblock();
  if (sequence.state == SequenceState::kRetiring) return end(sequence);
  SequenceUpdate update = update_of(sequence);
  update.logprobs = std::move(result.logprobs);
  if (of_every_position(span.output)) {
    update.logits = std::move(result.logits);
    update.prompt_logprobs = std::move(result.prompt_logprobs);
    sequence.num_prompt_logits += span.num_tokens;
  }
  if (result.token == SequenceResult::kInvalidLogits) {
    update.finish = FinishReason::kError;
    ++counters_.num_invalid_logits;
  } else if (result.token == SequenceResult::kNoneLeft) {
    update.finish = FinishReason::kError;
    update.none_left = true;
  } else if (span.ends_text && sequence.is_pooled()) {
    update.hidden = std::move(result.hidden);
    update.finish = FinishReason::kStop;
  } else if (span.ends_text && sequence.is_beam()) {
    sequence.held = true;
    queue_.unblock();  // it could give its blocks to another one of its search
  } else if (span.ends_text) {
    append(sequence, result.token, update);
  }
  const bool ended = update.finish != FinishReason::kNone;
  if (span.ends_text || ended || of_every_position(span.output)) updates.push_back(std::move(update));
  if (ended)
    end(sequence);
  else if (sequence.yielding)
    preempt_last(yields_for_);
} catch (const std::exception& e) {
  end_by_error(*span.sequence, e, updates);
}

// No memory, say: the sequence ends alone.
void Scheduler::end_by_error(Sequence& sequence, const std::exception& e,
                             std::vector<SequenceUpdate>& updates) {
  if (sequence.state != SequenceState::kRetiring) {
    if (updates.empty() || updates.back().id != sequence.id) updates.push_back(update_of(sequence));
    updates.back().finish = FinishReason::kError;
    updates.back().error = what_of(e);
  }
  end(sequence);
}

void Scheduler::append(Sequence& sequence, TokenId token, SequenceUpdate& update) {
  update.token = token;
  sequence.append(token);
  cache_.index(sequence.blocks, sequence.tokens());
  update.finish = sequence.finish_reason();
}

std::optional<ConstrainedOutput> Scheduler::constrained(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second.state == SequenceState::kRetiring) return std::nullopt;
  Sequence& sequence = found->second;
  if (!sequence.constraint) sequence.constraint = sequence.request->make_constraint();
  const auto num_prompt = static_cast<std::size_t>(sequence.num_prompt);
  const bool may_jump = sequence.request->may_jump && !sequence.suspect;
  return ConstrainedOutput{*sequence.constraint, sequence.tokens().subspan(num_prompt),
                           may_jump ? sequence.max_length - static_cast<int>(sequence.tokens().size()) : 0};
}

std::vector<SequenceUpdate> Scheduler::foresee(SequenceId id, std::span<const TokenId> tokens) {
  Sequence& sequence = sequences_.at(id);
  std::vector<SequenceUpdate> updates;
  updates.reserve(tokens.size());
  steps_.foresee(sequence);
  try {
    for (const TokenId token : tokens) {
      updates.push_back(update_of(sequence));
      append(sequence, token, updates.back());
      if (updates.back().finish == FinishReason::kNone) continue;
      end(sequence);
      break;
    }
  } catch (const std::exception& e) {
    end_by_error(sequence, e, updates);
  }
  tell([&](SchedulerObserver& observer) { observer.foreseen(id, updates); });
  return updates;
}

// Ends a sequence that holds a seat, at once or when the last step that uses it has been applied.
void Scheduler::end(Sequence& sequence) {
  if (sequence.state == SequenceState::kRunning) std::erase(running_, &sequence);
  sequence.state = SequenceState::kRetiring;
  if (sequence.num_in_flight > 0) return;
  give_back(sequence);
  forget(sequence);
}

void Scheduler::give_back(Sequence& sequence) {
  sequence.blocks.clear();
  free_seats_.push_back(std::exchange(sequence.seat, -1));
  queue_.unblock();
}

void Scheduler::forget(Sequence& sequence) {
  cache_.forget_saved(sequence.blocks.saved);
  if (const auto& deadline = sequence.request->deadline) deadlines_.erase({*deadline, sequence.id});
  sequences_.erase(sequence.id);
}

std::vector<SequenceUpdate> Scheduler::fail_in_flight() {
  cache_.lose_steps();
  for (auto& [id, sequence] : sequences_) cache_.forget_saved(sequence.blocks.saved);
  const std::vector<SequenceId> lost = steps_.drop();
  std::vector<SequenceUpdate> updates;
  for (const SequenceId id : lost) {
    const auto found = sequences_.find(id);
    if (found == sequences_.end()) continue;  // it was in several steps
    Sequence& sequence = found->second;
    const bool was_alone = sequence.suspect && lost.size() == 1;
    if (was_alone && sequence.state == SequenceState::kRunning) {
      updates.push_back(update_of(sequence));
      updates.back().finish = FinishReason::kError;
    }
    if (was_alone || sequence.state == SequenceState::kRetiring) {
      end(sequence);
      continue;
    }
    sequence.suspect = true;
    sequence.started = false;  // what it holds may never have been written
  }
  // Nor may the blocks of a sibling that a fork stands on.
  const auto started = [](const Sequence* sequence) { return sequence->started; };
  while (!std::ranges::all_of(running_, started)) preempt_last(Decision::Why::kLost);
  tell([&](SchedulerObserver& observer) { observer.lost_steps(updates); });
  return updates;
}

std::vector<SequenceUpdate> Scheduler::fail_all() {
  std::vector<SequenceUpdate> updates = fail_in_flight();
  for (auto next = sequences_.begin(); next != sequences_.end();)
    if (const SequenceId id = (next++)->first; abort(id))
      updates.push_back({.id = id, .finish = FinishReason::kError});
  return updates;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.num_running = config_.max_num_seqs - static_cast<int>(free_seats_.size());
  stats.num_waiting = static_cast<int>(queue_.size());
  stats.num_queued_requests = queue_.num_requests();
  stats.num_queued_tokens = queue_.num_tokens();
  stats.num_blocks = cache_.pool().num_blocks();
  stats.num_free_blocks = cache_.pool().num_free();
  stats.num_host_blocks = cache_.host_pool().num_blocks();
  stats.num_free_host_blocks = cache_.host_pool().num_free();
  stats.num_state_slots = cache_.state_slots().num_blocks();
  stats.num_free_state_slots = cache_.state_slots().num_free();
  return stats;
}

// The numbers are those of docs/invariants.md.
// First what keeps contents apart, so that nothing else hides it.
void Scheduler::check() const {
  std::vector<const SequenceBlocks*> blocks;
  for (const auto& [id, sequence] : sequences_) blocks.push_back(&sequence.blocks);
  cache_.check(blocks);
  for (const auto& [id, sequence] : sequences_) check_writes(sequence);
  check_order();
  auto in_flight = steps_.check(config_.max_num_batched_tokens, config_.max_num_seqs);
  std::vector<bool> taken(config_.max_num_seqs);
  std::size_t num_retiring = 0;
  std::size_t num_parked = 0;
  for (const auto& [id, sequence] : sequences_) {
    const auto found = in_flight.extract(&sequence);
    check_sequence(sequence, found ? found.mapped() : PlannedSteps::InFlight());
    num_parked += sequence.state == SequenceState::kWaiting && sequence.held ? 1 : 0;
    num_retiring += sequence.state == SequenceState::kRetiring ? 1 : 0;
    if (sequence.seat < 0) continue;  // it holds nothing
    const auto seat = static_cast<std::size_t>(sequence.seat);
    QUIRE_CHECK(!taken.at(seat), "10: seat {} is taken twice", seat);
    taken.at(seat) = true;
  }
  QUIRE_CHECK(in_flight.empty(), "14: {} sequences in flight are gone", in_flight.size());
  QUIRE_CHECK(running_.size() + queue_.size() + num_retiring + num_parked == sequences_.size(), "9");
  QUIRE_CHECK(running_.size() + num_retiring + free_seats_.size() == taken.size(), "10: seats are lost");
}

void Scheduler::check_order() const {
  std::map<int, std::uint64_t> newest;  // arrival of those running, by priority
  for (const Sequence* sequence : running_) {
    QUIRE_CHECK(sequence->state == SequenceState::kRunning, "9: sequence {} does not run", sequence->id);
    // Only the last one may have to yield, or it would not be the next to be preempted.
    QUIRE_CHECK(!sequence->yielding || sequence == running_.back(), "11");
    newest[sequence->priority] = sequence->arrival;
  }
  for (const Sequence* sequence : queue_) {
    QUIRE_CHECK(sequence->state == SequenceState::kWaiting && !sequence->held, "9: sequence {} does not wait",
                sequence->id);
    // A beam may have to wait for blocks while what came after its search runs.
    QUIRE_CHECK(sequence->is_beam() || sequence->arrival > newest[sequence->priority],
                "11: sequence {} lost its place", sequence->id);
  }
  QUIRE_CHECK(std::ranges::is_sorted(running_, Precedes{}) && std::ranges::is_sorted(queue_, Precedes{}),
              "11: not in order of precedence");
}

void Scheduler::check_writes(const Sequence& sequence) const {
  const SequenceId id = sequence.id;
  QUIRE_CHECK(sequence.state != SequenceState::kRetiring || sequence.num_in_flight > 0,
              "6: sequence {} is kept", id);
  if (sequence.state != SequenceState::kRunning) return;
  const BlockTable& table = sequence.blocks.table;
  const int block_size = config_.layout.block_size;
  for (int i = sequence.num_planned() / block_size; i < table.size(); ++i) {
    // The row that the prompt of siblings ends in, and the last one of a beam, is shared until it is
    // written, by way of a copy.
    const bool may_be_shared = sequence.is_beam() || (sequence.request->first_sibling != 0 &&
                                                      i == (sequence.num_prompt - 1) / block_size);
    for (const BlockId block : table.row(i))
      QUIRE_CHECK(may_be_shared || cache_.may_be_written(block),
                  "3: block {} is shared, and sequence {} will write it", block, id);
  }
}

void Scheduler::check_sequence(const Sequence& sequence, const PlannedSteps::InFlight& in_flight) const {
  const SequenceId id = sequence.id;
  const BlockTable& table = sequence.blocks.table;
  QUIRE_CHECK(sequence.num_in_flight == in_flight.num_steps && sequence.num_pending == in_flight.num_pending,
              "14: sequence {} counts {} steps and {} samples in flight, there are {} and {}", id,
              sequence.num_in_flight, sequence.num_pending, in_flight.num_steps, in_flight.num_pending);
  if (sequence.state == SequenceState::kWaiting)
    QUIRE_CHECK(table.size() == 0 && sequence.seat < 0 && sequence.num_in_flight == 0 &&
                    !sequence.has_sampled && !sequence.yielding,
                "9: sequence {} waits and holds something", id);
  QUIRE_CHECK(table.position() == sequence.num_planned() - in_flight.num_tokens,
              "14, 17: sequence {} has given back what lies before position {}", id, table.position());
  QUIRE_CHECK(sequence.max_length - 1 <= longest_alone_, "7: sequence {} cannot end", id);
  if (sequence.state != SequenceState::kRunning) return;
  QUIRE_CHECK(sequence.num_planned() <= sequence.length() && sequence.length() <= sequence.max_length,
              "14: sequence {}", id);
}

}  // namespace quire
