#include "server/window/window_book.h"

#include <algorithm>
#include <utility>

namespace quire::server {
namespace {

std::vector<WindowBlock> blocks_of(const BlockPool& pool, const std::function<bool(BlockId)>& is_cached) {
  std::vector<WindowBlock> blocks(static_cast<std::size_t>(pool.num_blocks()));
  for (BlockId id = 0; id < pool.num_blocks(); ++id) {
    blocks[static_cast<std::size_t>(id)].holders = pool.ref_count(id);
    blocks[static_cast<std::size_t>(id)].is_cached = is_cached(id);
  }
  return blocks;
}

void own(std::vector<WindowBlock>& blocks, BlockId id, SequenceId owner, std::size_t lane = 0) {
  if (id == kNoBlock || blocks[static_cast<std::size_t>(id)].owner != 0) return;
  blocks[static_cast<std::size_t>(id)].owner = owner;
  blocks[static_cast<std::size_t>(id)].lane = static_cast<int>(lane);
}

void own_all(WindowFrame& frame, const Sequence& sequence, std::size_t num_lanes) {
  const std::span<const BlockId> table = sequence.blocks.table.blocks();
  for (std::size_t i = 0; i < table.size(); ++i) own(frame.blocks, table[i], sequence.id, i % num_lanes);
  for (const BlockRef& ref : sequence.blocks.saved.blocks) own(frame.host_blocks, ref.id(), sequence.id);
  const SequenceStates& states = sequence.blocks.states;
  own(frame.slots, states.own.id(), sequence.id);
  own(frame.slots, states.source.id(), sequence.id);
  for (const SequenceStates::Kept& kept : states.kept) own(frame.slots, kept.slot.id(), sequence.id);
}

}  // namespace

void WindowBook::attach(const Scheduler& scheduler) {
  scheduler_ = &scheduler;
  second_ = static_cast<std::int64_t>(clock_());
  before_ = scheduler.stats();
}

WindowSequence& WindowBook::begin(SequenceId id, State state) {
  WindowSequence& sequence = kept_.sequences[id];
  enter(sequence, state);
  return sequence;
}

void WindowBook::enter(WindowSequence& sequence, State state) {
  sequence.state = state;
  sequence.life.push_back({clock_(), state});
  if (sequence.life.size() > kMomentsKept) sequence.life.erase(sequence.life.begin());
}

WindowSequence* WindowBook::find(SequenceId id) {
  const auto found = kept_.sequences.find(id);
  return found == kept_.sequences.end() ? nullptr : &found->second;
}

void WindowBook::mark(SequenceId id, State state) {
  WindowSequence* const sequence = find(id);
  if (sequence == nullptr || sequence->state == state || sequence->state == State::kEnded) return;
  enter(*sequence, state);
  if (state != State::kEnded) return;
  ended_.push_back(id);
  if (ended_.size() <= kEndedKept) return;
  kept_.sequences.erase(ended_.front());
  ended_.pop_front();
}

void WindowBook::end(SequenceId id, std::string_view why) {
  if (WindowSequence* const sequence = find(id); sequence != nullptr && sequence->end.empty())
    sequence->end = why;
  mark(id, State::kEnded);
}

void WindowBook::added(const SequenceRequest& request) {
  roll();
  for (int i = 0; i < request.num_outputs; ++i) {
    WindowSequence& sequence = begin(request.id + static_cast<SequenceId>(i), State::kWaiting);
    sequence.added = clock_();
    sequence.request = request.id;
    sequence.num_prompt = sequence.num_tokens = static_cast<int>(request.prompt.size());
  }
}

void WindowBook::aborted(SequenceId id) { end(id, "abort"); }

void WindowBook::planned(const StepPlan* plan, std::span<const PlanningFailure> failures) {
  roll();
  for (const PlanningFailure& failure : failures) end(failure.id, "error");
  if (plan == nullptr) return;
  in_flight_.push_back({plan->id, clock_(), plan->num_tokens, count_blocks(*plan)});
  kept_.step = {.id = plan->id,
                .num_tokens = plan->num_tokens,
                .spans = {},
                .decisions = plan->decisions,
                .num_copies = static_cast<int>(plan->block_copies.size()),
                .num_saves = static_cast<int>(plan->saves.size()),
                .num_restores = static_cast<int>(plan->restores.size())};
  for (const SequencePlan& sequence : plan->sequences) {
    const bool is_prompt = !sequence.tokens.empty();
    kept_.step.spans.push_back({sequence.sequence, sequence.num_tokens, is_prompt});
    if (is_prompt) now_.prompt_tokens += sequence.num_tokens;
  }
  for (const Decision& decision : plan->decisions) {
    if (decision.kind != Decision::Kind::kAdmitted && decision.kind != Decision::Kind::kPreempted) continue;
    const bool is_admitted = decision.kind == Decision::Kind::kAdmitted;
    mark(decision.sequence, is_admitted ? State::kPrompt : State::kPreempted);
    kept_.events.push_back({plan->id, decision});
    if (kept_.events.size() > kEventsKept) kept_.events.erase(kept_.events.begin());
  }
  add_marks(*plan);
}

void WindowBook::add_marks(const StepPlan& plan) {
  const auto add = [&](BlockId block, WindowMark::Kind kind) {
    kept_.marks.push_back({block, kind, plan.id, clock_()});
  };
  for (const BlockCopy& copy : plan.block_copies) add(copy.to, WindowMark::Kind::kCopied);
  for (const BlockCopy& copy : plan.saves) add(copy.from, WindowMark::Kind::kSaved);
  for (const BlockCopy& copy : plan.restores) add(copy.to, WindowMark::Kind::kRestored);
}

std::int64_t WindowBook::count_blocks(const StepPlan& plan) const {
  const CacheLayout& layout = scheduler_->config().layout;
  std::int64_t count = 0;
  for (const SequencePlan& sequence : plan.sequences) {
    const int num_rows = layout.rows_for(sequence.first_position + sequence.num_tokens);
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      count += num_rows - layout.num_outside(lane, sequence.first_position);
  }
  return count;
}

void WindowBook::applied(const StepResult& result, std::span<const SequenceUpdate> updates) {
  roll();
  const double now = clock_();
  if (!in_flight_.empty() && in_flight_.front().id == result.id) {  // else planned before the watching began
    const InFlight& step = in_flight_.front();
    kept_.applied = {now - std::max(step.planned_at, applied_at_), step.num_tokens, step.num_blocks};
    now_.busy += std::min(kept_.applied.seconds, now - static_cast<double>(second_));
    in_flight_.pop_front();
  }
  applied_at_ = now;
  for (const SequenceUpdate& update : updates) this->update(update);
}

void WindowBook::foreseen(SequenceId /*id*/, std::span<const SequenceUpdate> updates) {
  for (const SequenceUpdate& update : updates) this->update(update);
}

void WindowBook::update(const SequenceUpdate& update) {
  if (WindowSequence* const sequence = find(update.id); update.token && sequence != nullptr) {
    const double now = clock_();
    if (sequence->last_token >= 0) {
      between_tokens_.add(now - sequence->last_token);
    } else if (sequence->added >= 0) {
      first_token_.add(now - sequence->added);
    }
    sequence->last_token = now;
    ++sequence->num_tokens;
  }
  if (update.token) ++now_.output_tokens;
  if (update.token) mark(update.id, State::kDecoding);
  if (update.finish != FinishReason::kNone) end(update.id, to_string(update.finish));
}

// The forks take their parents' ids, so what is known of those is read first; it is the same of all. Of the
// beams of a round that have no fork, the scheduler knows nothing any more.
void WindowBook::forked(SequenceId first, std::span<const BeamFork> forks) {
  const WindowSequence* const parent = find(forks.front().parent);
  const WindowSequence from = parent == nullptr ? WindowSequence() : *parent;
  for (std::size_t i = 0; i < forks.size(); ++i) {
    WindowSequence& sequence = begin(first + i, State::kDecoding);
    sequence.added = from.added;
    sequence.request = from.request;
    sequence.num_prompt = from.num_prompt;
    sequence.num_tokens = from.num_tokens + 1;
    sequence.last_token = clock_();
    ++now_.output_tokens;
  }
  follow_scheduler();
}

void WindowBook::lost_steps(std::span<const SequenceUpdate> updates) {
  in_flight_.clear();
  for (const SequenceUpdate& update : updates) end(update.id, to_string(update.finish));
  follow_scheduler();
}

// Ends what the scheduler does not know any more, begins what it knew before, and puts right who runs and who
// waits: what was decided since a plan is told with the next one.
void WindowBook::follow_scheduler() {
  std::vector<SequenceId> gone;
  for (const auto& [id, sequence] : kept_.sequences)
    if (sequence.state != State::kEnded && !scheduler_->sequences().contains(id)) gone.push_back(id);
  for (const SequenceId id : gone) end(id, "");
  for (const auto& [id, sequence] : scheduler_->sequences()) {
    if (sequence.state == SequenceState::kRetiring) continue;
    const bool waits = sequence.state == SequenceState::kWaiting;
    const WindowSequence* const known = find(id);
    const State seen = known == nullptr ? State::kEnded : known->state;
    if (waits == (seen == State::kWaiting || seen == State::kPreempted) && seen != State::kEnded) continue;
    State state = sequence.has_sampled ? State::kDecoding : State::kPrompt;
    if (waits) state = sequence.num_cached_tokens < 0 ? State::kWaiting : State::kPreempted;
    if (seen == State::kEnded)
      begin(id, state).request = sequence.request->id;
    else
      mark(id, state);
  }
}

// Closes the seconds that have passed, and forgets marks that are older than one.
void WindowBook::roll() {
  const double time = clock_();
  const auto now = static_cast<std::int64_t>(time);
  if (now == second_) return;
  std::erase_if(kept_.marks, [&](const WindowMark& mark) { return mark.time < time - 1; });
  const auto busy_in = [&](std::int64_t second) {  // with the step that is still under way
    const auto begin = static_cast<double>(second);
    if (in_flight_.empty()) return 0.0;
    return std::max(0.0, begin + 1 - std::max({begin, in_flight_.front().planned_at, applied_at_}));
  };
  const SchedulerStats stats = scheduler_->stats();
  now_.cache_use = 1 - static_cast<double>(stats.num_free_blocks) / std::max(stats.num_blocks, 1);
  now_.busy = std::min(now_.busy + busy_in(second_), 1.0);
  now_.first_token = std::exchange(first_token_, {}).value();
  now_.between_tokens = std::exchange(between_tokens_, {}).value();
  const auto queries = static_cast<double>(stats.prefix_cache_queries - before_.prefix_cache_queries);
  const auto hits = static_cast<double>(stats.prefix_cache_hits - before_.prefix_cache_hits);
  if (queries > 0) now_.hit_rate = hits / queries;
  before_ = stats;
  kept_.seconds[second_] = now_;
  for (std::int64_t quiet = std::max(second_ + 1, now - kSecondsKept); quiet < now; ++quiet)
    kept_.seconds[quiet] = {.cache_use = now_.cache_use, .busy = busy_in(quiet)};
  kept_.seconds.erase(kept_.seconds.begin(), kept_.seconds.lower_bound(now - kSecondsKept));
  now_ = {};
  second_ = now;
}

WindowFrame WindowBook::frame(std::size_t num_tail) {
  const double begun = clock_();
  roll();
  follow_scheduler();
  const KvCache& cache = scheduler_->cache();
  WindowFrame frame = kept_;
  frame.time = clock_();
  std::erase_if(frame.marks, [&](const WindowMark& mark) { return mark.time < frame.time - 1; });
  frame.blocks = blocks_of(cache.pool(), [&](BlockId id) { return cache.is_cached(id); });
  frame.host_blocks = blocks_of(cache.host_pool(), [](BlockId) { return false; });
  frame.slots = blocks_of(cache.state_slots(), [&](BlockId id) { return cache.is_checkpoint(id); });
  for (auto& [id, shown] : frame.sequences) {
    const auto found = scheduler_->sequences().find(id);
    if (found == scheduler_->sequences().end()) continue;
    const Sequence& sequence = found->second;
    const std::span<const TokenId> tokens = sequence.tokens();
    WindowSequence& kept = kept_.sequences.at(id);
    shown.num_prompt = kept.num_prompt = sequence.num_prompt;
    shown.num_tokens = kept.num_tokens = static_cast<int>(tokens.size());
    shown.num_computed = sequence.num_planned();
    shown.num_cached = std::max(sequence.num_cached_tokens, 0);
    shown.max_tokens = sequence.max_length;
    shown.num_saved = static_cast<int>(sequence.blocks.saved.blocks.size());
    const std::span<const BlockId> table = sequence.blocks.table.blocks();
    shown.table.assign(table.begin(), table.end());
    const auto tail = tokens.last(std::min(num_tail, tokens.size()));
    shown.tail.assign(tail.begin(), tail.end());
    own_all(frame, sequence, scheduler_->config().layout.windows.size());
  }
  frame.cost = clock_() - begun;
  return frame;
}

}  // namespace quire::server
