// What the next step computes: of those who run, of those who wait, and who makes way for whom.
#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "scheduler/scheduler.h"

namespace quire {

using Kind = Decision::Kind;
using Why = Decision::Why;

std::optional<StepPlan> Scheduler::schedule() {
  const std::size_t num_failed = planning_failures_.size();
  std::optional<StepPlan> plan = plan_step();
  tell([&](SchedulerObserver& observer) {
    observer.planned(plan ? &*plan : nullptr, std::span(planning_failures_).subspan(num_failed));
  });
  return plan;
}

std::optional<StepPlan> Scheduler::plan_step() {
  std::erase_if(decisions_, [](const Decision& decision) { return decision.kind == Kind::kCut; });
  steps_.open(std::min(running_.size() + queue_.size(), running_.size() + free_seats_.size()));
  const std::vector<SequencePlan>& planned = steps_.plan().sequences;
  decodes_left_ = 0;
  if (!plan_suspect()) plan_by_precedence();
  if (planned.empty()) plan_suspect();  // one may just have been admitted
  if (planned.empty()) return std::nullopt;
  // Only now, so that a step finds no block that it writes itself: what is hit, an earlier step has written.
  for (const PlannedSteps::Span& span : steps_.spans())
    cache_.index(span.sequence->blocks, span.sequence->tokens());
  StepPlan plan = steps_.close();
  plan.saves = cache_.close_step(plan.state_copies);
  if (!queue_.empty()) decide(queue_.first(), Kind::kWaits, waits_for_.why, waits_for_.count);
  plan.decisions = std::exchange(decisions_, {});
  return plan;
}

// A suspect is planned for itself, with no other step in flight. True: nothing else is to be planned.
bool Scheduler::plan_suspect() {
  const auto found = std::ranges::find(running_, true, &Sequence::suspect);
  if (found == running_.end()) return false;
  waits_for(Why::kLost);
  if (steps_.num_in_flight() > 0) return true;
  plan_next(**found);
  return !steps_.plan().sequences.empty();
}

// Running sequences and those waiting take their turn by precedence. First come, first served, all running
// ones precede all waiting ones; under priorities one that waits may precede one that runs.
void Scheduler::plan_by_precedence() {
  const auto is_decode = [this](const Sequence* sequence) {
    return !sequence->suspect && span_limit(*sequence) == 1;
  };
  decodes_left_ = static_cast<int>(std::ranges::count_if(running_, is_decode));
  if (!queue_.is_blocked()) waits_for(Why::kBudget);
  for (std::size_t i = 0; budget() > 0;) {  // preemption takes from the end
    if (waiting_is_next(i) && admit_next(i) && is_decode(running_[i])) ++decodes_left_;
    if (i >= running_.size()) break;
    if (running_[i]->suspect || plan_next(*running_[i])) ++i;
  }
}

// False: planning it has failed, and it is gone.
bool Scheduler::plan_next(Sequence& sequence) {
  const int wanted = span_limit(sequence);
  if (wanted == 0) return true;
  const int all = sequence.span_limit(steps_.id());
  Why why = all > config_.max_span ? Why::kLimit : Why::kStates;
  if (wanted == 1) --decodes_left_;
  // Every decode behind gets its token; yet whoever comes first always gets on.
  const int affordable = std::max(1, budget() - decodes_left_);
  if (affordable < wanted) why = Why::kBudget;
  const int num_tokens = make_room(sequence, std::min(wanted, affordable), why);
  if (num_tokens < all) decide(sequence, Kind::kCut, why, all - num_tokens);
  if (num_tokens == 0) return true;
  try {
    plan_span(sequence, num_tokens);
    return true;
  } catch (const std::exception& e) {
    sequence.blocks.table.cut(config_.layout.rows_for(sequence.blocks.num_tokens));
    planning_failures_.push_back({sequence.id, what_of(e)});
    end(sequence);
    return false;
  }
}

// What may fail comes before the step knows of the sequence, so that a failure leaves nothing in it.
void Scheduler::plan_span(Sequence& sequence, int num_tokens) {
  if (config_.on_plan) config_.on_plan(sequence.id);
  SequencePlan plan = sequence.plan_span(num_tokens);
  std::vector<BlockCopy> copies;  // of one row at most
  plan.first_new_row = cache_.prepare_write(sequence.blocks, num_tokens, !sequence.started,
                                            sequence.num_in_flight > 0, copies);
  const auto new_rows = sequence.blocks.table.rows_from(plan.first_new_row);
  plan.new_blocks.assign(new_rows.begin(), new_rows.end());
  StepPlan& step = steps_.plan();
  step.block_copies.insert(step.block_copies.end(), copies.begin(), copies.end());
  const BlockCopy states = cache_.write_states(sequence.blocks);
  plan.state_from = states.from;
  plan.state_to = states.to;
  // Between this and add() nothing fails: no step restores into blocks that were given back.
  if (!sequence.blocks.saved.blocks.empty()) {
    counters_.num_restored_blocks += cache_.restore(sequence.blocks, step.restores);
    sequence.prompt_step = steps_.id();  // copies within the cache come before: no fork before the next step
  }
  steps_.add(sequence, std::move(plan));
  if (cache_.has_states() && is_state_border(sequence, sequence.num_planned()))
    cache_.keep_states(sequence.blocks, sequence.num_planned() > sequence.num_prompt);
}

// Where fixed states are kept: at the last interval's end that the known tokens reach, so that neither the
// same prompt nor its next turn are computed again; at every kFarIntervals-th interval, and where what others
// have computed was known and had no states; and before the last token of a prompt that siblings continue.
bool Scheduler::is_state_border(const Sequence& sequence, int position) const {
  if (sequence.request->num_outputs > 1 && position == sequence.num_prompt - 1) return position > 0;
  const int interval = config_.layout.state_interval;
  if (!config_.enable_prefix_caching || position == 0 || position % interval != 0) return false;
  return position + interval >= sequence.length() || position % (kFarIntervals * interval) == 0 ||
         position == sequence.state_branch;
}

// How many of the next tokens a span may have up to the next such place.
int Scheduler::up_to_state_border(const Sequence& sequence, int wanted) const {
  if (!cache_.has_states() || wanted <= 1) return wanted;
  const int first = sequence.num_planned(), interval = config_.layout.state_interval;
  const int before_last = sequence.num_prompt - 1;
  if (sequence.request->num_outputs > 1 && first < before_last)
    wanted = std::min(wanted, before_last - first);
  for (int border = (first / interval + 1) * interval; border < first + wanted; border += interval)
    if (is_state_border(sequence, border)) return border - first;
  return wanted;
}

// How many of the next tokens of a running sequence have a place. If not even one has, the last one gives its
// blocks up; if that one is in flight, or is this very sequence, the answer is 0: it waits for results, or
// for the older ones to end. So it does where its own steps in flight have blocks that leave its window. A
// beam takes what held ones of its own search have before it waits for itself.
// why: why there were not as many, as far as that is known.
int Scheduler::make_room(const Sequence& sequence, int wanted, Why& why) {
  while (true) {
    const SequenceBlocks& blocks = sequence.blocks;
    const int writable = blocks.table.writable(blocks.num_tokens, wanted);
    if (writable < wanted) why = Why::kBlocks;
    if (writable > 0) return writable;
    const bool gives_back = config_.layout.leaves_rows(blocks.table.position(), blocks.num_tokens);
    if (gives_back && sequence.num_in_flight > 0) return 0;
    if (running_.back() == &sequence ? !strip_held_sibling(sequence) : !preempt_last(Why::kBlocks)) return 0;
  }
}

// The last running one gives its seat and its blocks up. False: it has steps in flight, and does so when they
// are applied.
bool Scheduler::preempt_last(Why why) {
  Sequence& sequence = *running_.back();
  sequence.yielding = sequence.num_in_flight > 0;
  if (sequence.yielding) {
    yields_for_ = why;
    return false;
  }
  decide(sequence, Kind::kPreempted, why);
  if (!sequence.held) queue_.push(sequence);  // the last that may fail
  running_.pop_back();
  // Where nothing was planned of it, what is saved is still all there is. A held beam has had its blocks'
  // use. A sum of hidden states is begun anew with its sequence.
  int num_saved = 0;
  if (sequence.started && !sequence.held && !adds_up(sequence.prompt_output()))
    num_saved =
        cache_.save(sequence.blocks, !of_every_position(sequence.prompt_output()), config_.preemption);
  counters_.num_saved_blocks += num_saved;
  decisions_.back().count = num_saved;
  give_back(sequence);
  sequence.state = SequenceState::kWaiting;
  sequence.has_sampled = sequence.started = false;
  sequence.prompt_step = 0;
  ++counters_.num_preemptions;
  return true;
}

// Whether the first waiting sequence precedes running_[place] and may try to be admitted. Newcomers wait
// while a running sequence drains to give its blocks back: it is the next to be preempted.
bool Scheduler::waiting_is_next(std::size_t place) {
  if (queue_.empty() || queue_.is_blocked()) return false;
  if (!running_.empty() && running_.back()->yielding) return waits_for(Why::kDraining);
  const auto precedence = queue_.first().precedence();
  // Before those that have had their turn in this step it would push one of them to `place`: the next step
  // takes it.
  if (place > 0 && precedence < running_[place - 1]->precedence()) return false;
  return place == running_.size() || precedence < running_[place]->precedence();
}

// Makes the first waiting sequence running_[place], if blocks are free for all its tokens and for what those
// running will take next. Where it would fit without those that come behind, they make way, the last one
// first.
bool Scheduler::admit_next(std::size_t place) {
  Sequence& sequence = queue_.first();
  const BlockPool& pool = cache_.pool();
  while (place < running_.size() || !free_seats_.empty()) {
    const Sequence* sibling = find_sibling(sequence);
    if (sibling && sibling->num_planned() < sibling->num_prompt) return waits_for(Why::kSibling);
    const ComputedPrefix computed = find_computed(sequence, sibling);
    int num_needed = blocks_ahead(sequence) - cache_.num_spared(computed);
    int num_behind = 0;  // blocks that those behind will take
    for (std::size_t i = 0; i < running_.size(); ++i)
      (i < place ? num_needed : num_behind) += blocks_ahead(*running_[i]);
    if (!free_seats_.empty() && num_needed + num_behind <= pool.num_free() && cache_.has_slot()) {
      admit(sequence, computed, sibling);
      return true;
    }
    if (place == running_.size() || num_needed > pool.num_free() + num_held_from(place)) {
      if (strip_held_sibling(sequence)) continue;
      // States that are kept for a while may hold it.
      if (!cache_.has_slot()) return waits_for(Why::kSlots);
      if (!free_seats_.empty()) waits_for(Why::kBlocks, num_needed + num_behind - pool.num_free());
      break;
    }
    if (!preempt_last(Why::kPriority)) return waits_for(Why::kDraining);
  }
  if (free_seats_.empty()) waits_for(Why::kSeats);
  queue_.block();
  return false;
}

// Blocks that only running_[place] and those behind it hold.
int Scheduler::num_held_from(std::size_t place) const {
  std::unordered_map<BlockId, int> holders;  // of blocks that are shared
  int count = 0;
  for (std::size_t i = place; i < running_.size(); ++i) {
    for (const BlockId block : running_[i]->blocks.table.blocks()) {
      if (block == kNoBlock) continue;
      const int references = cache_.pool().ref_count(block);
      count += references == 1 || ++holders[block] == references ? 1 : 0;
    }
  }
  return count;
}

// A running sibling, if there is one whose blocks are filled by the steps that are planned: where possible,
// one whose prompt is.
const Sequence* Scheduler::find_sibling(const Sequence& sequence) const {
  const SequenceId first = sequence.request->first_sibling;
  if (first == 0 || !sequence.may_share()) return nullptr;
  const Sequence* found = nullptr;
  for (const Sequence* other : running_) {
    // Prompts of one length, whatever a recording says.
    if (other->request->first_sibling != first || other->num_prompt != sequence.num_prompt ||
        other->is_stripped() || !other->blocks.saved.blocks.empty())
      continue;
    found = other;
    if (other->num_planned() >= other->num_prompt) break;
  }
  return found;
}

// The last known token is never in it: that is computed for its logits.
ComputedPrefix Scheduler::find_computed(const Sequence& sequence, const Sequence* sibling) const {
  const std::size_t most = sequence.tokens().size() - 1;
  const int num_common = std::min(sequence.num_prompt, static_cast<int>(most));
  return cache_.find(sequence.blocks, sequence.tokens().first(sequence.may_share() ? most : 0),
                     sibling ? &sibling->blocks : nullptr, num_common);
}

// The blocks a sequence will take for the tokens it has and for the next block_size, unless it ends earlier.
int Scheduler::blocks_ahead(const Sequence& sequence) const {
  if (sequence.is_stripped()) return 0;
  const int block_size = config_.layout.block_size;
  const int length = std::min(sequence.max_length - 1, sequence.length() + block_size);
  const int span = std::min(sequence.num_unplanned(), config_.max_num_batched_tokens) + block_size;
  return cache_.num_to_take(sequence.blocks, length, span);
}

void Scheduler::admit(Sequence& sequence, const ComputedPrefix& computed, const Sequence* sibling) {
  queue_.remove(sequence);
  start_running(sequence);
  cache_.admit(sequence.blocks, computed);
  sequence.prompt_step = computed.forked ? sibling->prompt_step : 0;
  decide(sequence, Kind::kAdmitted, Why::kNone, computed.num_tokens);
  if (const int interval = config_.layout.state_interval; interval > 0)
    sequence.state_branch = computed.num_known / interval * interval;
  if (sequence.num_cached_tokens >= 0) return;
  sequence.num_cached_tokens = computed.forked ? 0 : computed.num_tokens;
  const bool looked = config_.enable_prefix_caching && sequence.may_share();
  sequence.cache_end = looked ? computed.end : CacheEnd{CacheEnd::Reason::kOff};
  if (looked && !computed.forked) counters_.prefix_cache_queries += sequence.num_prompt;
  counters_.prefix_cache_hits += sequence.num_cached_tokens;
}

void Scheduler::start_running(Sequence& sequence) {
  sequence.state = SequenceState::kRunning;
  sequence.seat = free_seats_.back();
  free_seats_.pop_back();
  running_.insert(std::ranges::upper_bound(running_, &sequence, Precedes{}), &sequence);
}

}  // namespace quire
