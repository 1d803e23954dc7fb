#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/error.h"
#include "scheduler/fake_runner.h"
#include "scheduler/scenario.h"
#include "scheduler/scheduler.h"

namespace quire::testing {

// Runs a scenario against the scheduler, the fake runner, and a model of what has been promised, in plain
// maps and sets; throws at the first difference. Numbers are those of docs/invariants.md.
class Harness {
 public:
  explicit Harness(const Scenario& scenario)
      : config_(scenario.config), depth_(scenario.depth), scheduler_(with_fault(config_)), runner_(config_) {}

  void run(std::span<const Operation> operations) {
    for (const Operation& operation : operations) {
      perform(operation);
      check();
    }
    drain();
  }

  // Lets everything end, which it must within a bounded number of steps (11), and leave nothing behind.
  void drain() {
    std::int64_t steps_left = 100;
    for (const SequenceId id : alive_)
      steps_left += std::int64_t{max_length(id)} * stall_limit() * (1 + static_cast<int>(alive_.size()));
    while (scheduler_.has_unfinished() || runner_.num_in_flight() > 0) {
      require(steps_left-- > 0, "11: no end in sight");
      if (runner_.num_in_flight() == depth_ || !schedule()) apply();
      check();
    }
    require(alive_.empty(), "9: a sequence was forgotten");
    const SchedulerStats stats = scheduler_.stats();
    require(stats.num_free_blocks == stats.num_blocks, "1: a block was lost");
    require(stats.num_free_host_blocks == stats.num_host_blocks, "16: a block of host memory was lost");
    require(stats.num_free_state_slots == stats.num_state_slots, "18: a slot was lost");
    require(stats.num_running == 0 && stats.num_waiting == 0, "9: a sequence stayed");
    require(stats.num_queued_requests == 0 && stats.num_queued_tokens == 0, "9: one is queued for ever");
  }

  // The single things that operations do, each followed by check() where somebody looks at every state.

  // Sequences with ids that follow; siblings, if there are several. Refused if they can never run.
  void add(SequenceRequest request, int num_outputs) {
    const auto num_prompt = static_cast<int>(request.prompt.size());
    const int longest = config_.max_model_len - (is_pooled(request.prompt_output) ? 0 : 1);
    const bool possible =
        num_prompt > 0 && request.max_tokens > 0 && num_prompt <= longest && num_prompt <= longest_in_cache();
    request.id = last_id_ + 1;
    request.num_outputs = num_outputs;
    if (num_outputs > 1) request.first_sibling = request.id;
    bool refused = false;
    try {
      scheduler_.add(std::make_shared<SequenceRequest>(request));
    } catch (const Error&) {
      refused = true;
    }
    require(refused != possible, "a request is refused or taken wrongly", request.id);
    if (refused) return;
    for (int i = 0; i < num_outputs; ++i) {
      request.id = ++last_id_;
      runner_.histories.emplace(request.id, History(request));
      alive_.insert(request.id);
      requests_[request.id] = {request, num_prompt};
      request.prompt_output = OutputKind::kLast;  // of one of them is enough
      ++request.sampling.seed;
    }
  }

  void abort(SequenceId id) {
    const bool was_alive = alive_.erase(id) > 0;
    require(scheduler_.abort(id) == was_alive, "15: abort and the model disagree", id);
    require(!scheduler_.abort(id), "15: abort is not idempotent", id);
  }

  // False: there is nothing to plan.
  bool schedule() {
    const bool idle = runner_.num_in_flight() == 0;
    const std::optional<StepPlan> plan = scheduler_.schedule();
    const bool failed = receive_failures();
    if (!plan) {
      require(failed || !idle || !scheduler_.has_unfinished(), "11: nothing runs");
      return failed;
    }
    require(plan->id == ++last_plan_, "plans are not counted", plan->id);
    Step step{plan->id, plan->num_tokens, {}, {}};
    int num_tokens = 0;
    std::set<SequenceId> planned;
    std::set<int> seats;
    for (const SequencePlan& sequence : plan->sequences) {
      require(alive_.contains(sequence.sequence), "9: an ended sequence is planned", sequence.sequence);
      require(planned.insert(sequence.sequence).second, "10: planned twice", sequence.sequence);
      require(seats.insert(sequence.seat).second, "10: a seat is used twice", sequence.sequence);
      require(sequence.first_position + sequence.num_tokens < max_length(sequence.sequence),
              "10: planned past its end", sequence.sequence);
      num_tokens += sequence.num_tokens;
      require(config_.max_span == 0 || sequence.num_tokens <= config_.max_span, "10: a span");
      const bool pools = is_pooled(sequence.output) && sequence.output != OutputKind::kHiddenSum;
      step.sequences.emplace_back(sequence.sequence, sequence.sample || pools);
      const bool is_constrained = requests_.at(sequence.sequence).asked.make_constraint != nullptr;
      require(sequence.constrained == (sequence.sample && is_constrained), "a wrong mask", sequence.sequence);
      if (sequence.constrained) step.constrained.insert(sequence.sequence);
      record_blocks(sequence, step);
    }
    check_writes(*plan);
    num_block_copies_ += plan->block_copies.size();
    require(num_tokens == plan->num_tokens && num_tokens <= config_.max_num_batched_tokens, "10: the budget");
    check_suspects(planned, idle);
    check_progress(planned, idle);
    in_flight_.push_back(std::move(step));
    runner_.submit(*plan);
    return true;
  }

  void apply() {
    const StepResult result = runner_.collect();
    const Step step = std::move(in_flight_.front());
    in_flight_.pop_front();
    std::map<SequenceId, bool> expected;  // whoever has an outcome and is alive has an update
    for (const auto& [id, samples] : step.sequences) {
      if (samples && alive_.contains(id)) expected[id] = true;
      if (samples) suspects_.erase(id);
    }
    for (const SequenceUpdate& update : scheduler_.apply(result)) {
      const auto it = std::find_if(result.sequences.begin(), result.sequences.end(),
                                   [&](const SequenceResult& r) { return r.sequence == update.id; });
      require(it != result.sequences.end(), "an update of a sequence that was not in the step", update.id);
      const bool is_known = step.foreseen.contains(update.id) && it->token >= 0;
      receive(update, is_known ? SequenceResult::kNoToken : it->token);
      expected.erase(update.id);
    }
    require(expected.empty(), "a token was swallowed", step.id);
  }

  void check() {
    scheduler_.check();
    for (const Step& step : in_flight_) {
      for (const auto& [block, generation] : step.blocks) {
        require(scheduler_.cache().pool().ref_count(block) > 0, "6: a block in flight is free", step.id);
        require(scheduler_.cache().pool().generation(block) == generation, "6: a block in flight is reused",
                step.id);
      }
    }
    const SchedulerStats stats = scheduler_.stats();
    check_windows(stats);
    require(stats.num_running + stats.num_waiting >= static_cast<int>(alive_.size()),
            "9: one is in no state");
    require(scheduler_.has_unfinished() == !alive_.empty(), "9: unfinished or not");
  }

  // Nobody ends but a suspect that was alone.
  void fail_in_flight() {
    std::vector<SequenceId> lost;
    for (const Step& step : in_flight_)
      for (const auto& [id, samples] : step.sequences) lost.push_back(id);
    in_flight_.clear();
    runner_.drop_all();
    const bool ends = lost.size() == 1 && suspects_.contains(lost[0]) && alive_.contains(lost[0]);
    const auto updates = scheduler_.fail_in_flight();
    require(updates.size() == (ends ? 1 : 0), "a wrong loss");
    if (ends) {
      require(updates[0].finish == FinishReason::kError && updates[0].id == lost[0], "a wrong loss", lost[0]);
      alive_.erase(lost[0]);
    }
    suspects_.insert(lost.begin(), lost.end());
  }

  // What the only step in flight samples of a sequence is known, and so are some tokens behind that.
  void foresee(int most) {
    Step& step = in_flight_.back();
    for (auto& [id, samples] : step.sequences) {
      if (!step.constrained.contains(id) || step.foreseen.contains(id)) continue;
      const std::optional<ConstrainedOutput> output = scheduler_.constrained(id);
      require(output.has_value() == alive_.contains(id), "9: constrained or not", id);
      if (!output || output->most_forced == 0) continue;
      const Request& request = requests_.at(id);
      require(std::ssize(output->tokens) == request.num_tokens - std::ssize(request.asked.prompt),
              "another output", id);
      std::vector<TokenId> tokens;
      for (int i = 0; i < std::min(1 + most % 12, output->most_forced); ++i)
        tokens.push_back(runner_.histories.at(id).token(request.num_tokens + i));
      for (const SequenceUpdate& update : scheduler_.foresee(id, tokens)) {
        receive(update, *update.token);
        ++num_foreseen_;
      }
      step.foreseen.insert(id);
      samples = false;
    }
  }

  // A fault: the books are as if that block, which just became free, had been left out when the others were
  // given back.
  void skip_release(BlockId block) { const_cast<BlockPool&>(scheduler_.cache().pool()).acquire(block); }

  std::uint64_t num_foreseen() const { return num_foreseen_; }
  bool is_alive(SequenceId id) const { return alive_.contains(id); }
  int num_in_flight() const { return runner_.num_in_flight(); }
  SchedulerStats stats() const { return scheduler_.stats(); }
  const Scheduler& scheduler() const { return scheduler_; }
  std::uint64_t num_block_copies() const { return num_block_copies_; }
  std::uint64_t num_outside() const { return num_outside_; }

 private:
  struct Request {
    SequenceRequest asked;
    int num_tokens = 0;  // prompt and output received
    int num_logits = 0;
    int num_cached = -1;
  };
  struct Step {
    std::uint64_t id;
    int num_tokens;
    std::vector<std::pair<SequenceId, bool>> sequences;     // whether it samples or pools
    std::vector<std::pair<BlockId, std::uint64_t>> blocks;  // read or written, with their generations
    std::set<SequenceId> constrained = {}, foreseen = {};
  };

  SchedulerConfig with_fault(SchedulerConfig config) {
    config.on_plan = [this](SequenceId id) {
      if (fault_in_ == 0 || --fault_in_ > 0) return;
      faulty_ = id;
      throw std::runtime_error("injected");
    };
    return config;
  }

  void perform(const Operation& operation) {
    switch (operation.kind()) {
      case Operation::kAdd:
        return add(operation);
      case Operation::kAbort:
        return abort(operation);
      case Operation::kSchedule:
        if (runner_.num_in_flight() < depth_) schedule();
        return;
      case Operation::kApply:
        if (runner_.num_in_flight() > 0) apply();
        return;
      case Operation::kPoison:
        if (operation.a % 8 == 0) runner_.poison_next();
        if (operation.a % 8 == 1) fault_in_ = 1 + operation.b % 5;
        return;
      case Operation::kForesee:
        if (runner_.num_in_flight() == 1) foresee(operation.a);
        return;
      case Operation::kFailInFlight:
        return fail_in_flight();
    }
  }

  SequenceRequest make_request(const Operation& operation) {
    SequenceRequest request;
    request.id = last_id_ + 1;
    request.cache_salt = operation.c % 8 == 0 ? "salt" : "";
    request.priority = operation.b % 3 - 1;
    if (operation.c % 7 == 0) request.deadline = now_ + std::chrono::seconds(operation.a % 6);
    if (operation.c % 4 == 1) request.sampling.stop_ids = {0};
    if (operation.c % 5 == 0) request.sampling.stop_ids.push_back(7);
    if (operation.c % 16 == 9) request.prompt_output = OutputKind::kAll;
    if (operation.c % 16 == 11) request.prompt_output = OutputKind::kHiddenMean;
    if (operation.c % 16 == 13) request.prompt_output = OutputKind::kLastHidden;
    if (operation.c % 3 == 0 && !is_pooled(request.prompt_output))
      request.make_constraint = [] { return std::make_shared<AnyTokens>(); };
    request.may_jump = operation.c % 2 == 0;
    request.sampling.seed = operation.c;
    request.max_tokens = operation.b % 32 == 31 ? 0 : 1 + operation.b % 96;
    request.min_tokens = operation.b / 32 % 2 == 0 ? 0 : operation.b / 64 * 5;
    const auto earlier = requests_.find(1 + operation.a % std::max<SequenceId>(last_id_, 1));
    if (operation.b >= 192 && earlier != requests_.end()) {  // the next turn of a conversation
      History& history = runner_.histories.at(earlier->first);
      for (int i = 0; i < earlier->second.num_tokens; ++i) request.prompt.push_back(history.token(i));
      request.cache_salt = earlier->second.asked.cache_salt;
    }
    const int document = operation.c / 64;  // four of them, which begin alike
    for (int i = static_cast<int>(request.prompt.size()),
             end = i + operation.a % (operation.c % 4 == 0 ? 72 : 24);
         i < end; ++i)
      request.prompt.push_back(static_cast<TokenId>(8 + (i < 12 ? i % 5 : (i * (document + 1)) % 9)));
    return request;
  }

  void add(const Operation& operation) {
    SequenceRequest request = make_request(operation);
    const bool several = operation.a % 5 == 4 && !is_pooled(request.prompt_output);
    add(std::move(request), several ? 2 + operation.a % 7 : 1);
  }

  void abort(const Operation& operation) {
    const SequenceId id = operation.a % (last_id_ + 2);  // 0 and last_id_ + 1 never were
    if (operation.b % 4 == 0) return abort_with_siblings(id);
    if (operation.b % 4 == 1) return expire();
    abort(id);
  }

  void expire() {
    now_ += std::chrono::seconds(1);
    std::set<SequenceId> late;
    for (const SequenceId id : alive_)
      if (const auto& deadline = requests_.at(id).asked.deadline; deadline && *deadline <= now_)
        late.insert(id);
    for (const SequenceId id : scheduler_.expire(now_))
      require(late.erase(id) == 1 && alive_.erase(id) == 1, "15: expired wrongly", id);
    require(late.empty(), "15: a deadline has passed");
  }

  void abort_with_siblings(SequenceId first) {
    std::vector<SequenceId> expected;
    for (const SequenceId id : alive_)
      if (id == first || (first != 0 && requests_.at(id).asked.first_sibling == first))
        expected.push_back(id);
    require(scheduler_.abort_with_siblings(first) == expected, "15: abort and the model disagree", first);
    require(scheduler_.abort_with_siblings(first).empty(), "15: abort is not idempotent", first);
    for (const SequenceId id : expected) alive_.erase(id);
  }

  void record_blocks(const SequencePlan& sequence, Step& step) {
    std::vector<BlockId>& table = tables_[sequence.seat];
    if (sequence.start) table.clear();
    table.resize(static_cast<std::size_t>(sequence.first_new_row * config_.layout.num_lanes()), kNoBlock);
    table.insert(table.end(), sequence.new_blocks.begin(), sequence.new_blocks.end());
    for (const BlockId block : blocks_used(sequence))
      step.blocks.emplace_back(block, scheduler_.cache().pool().generation(block));
    num_outside_ += table.size() - blocks_used(sequence).size();
  }
  // Those that its span writes or attends to.
  std::vector<BlockId> blocks_used(const SequencePlan& sequence) const {
    const std::vector<BlockId>& table = tables_.at(sequence.seat);
    const std::size_t num_lanes = config_.layout.windows.size();
    std::vector<BlockId> used;
    for (std::size_t i = 0; i < table.size(); ++i) {
      const int window = config_.layout.windows[i % num_lanes];
      const int first = window == 0 ? 0 : std::max(0, sequence.first_position - window + 1);
      if (static_cast<int>(i / num_lanes) >= first / config_.layout.block_size) used.push_back(table[i]);
    }
    return used;
  }

  // 17: of each sequence there are its window, what its steps in flight write, and what they replace.
  void check_windows(const SchedulerStats& stats) const {
    std::int64_t most = stats.num_running * config_.layout.blocks_held(CacheLayout::kMaxTokens, 1);
    for (const Step& step : in_flight_)
      most += config_.layout.num_lanes() *
              (step.num_tokens / config_.layout.block_size + 2 * static_cast<int>(step.sequences.size()));
    require(stats.num_blocks - stats.num_free_blocks <= most, "17: blocks outside all windows are held");
  }

  // 3: what a sequence writes, no other of the step uses.
  void check_writes(const StepPlan& plan) const {
    std::map<BlockId, int> num_holders;
    for (const SequencePlan& sequence : plan.sequences)
      for (const BlockId block : blocks_used(sequence)) ++num_holders[block];
    for (const SequencePlan& sequence : plan.sequences) {
      const std::vector<BlockId>& table = tables_.at(sequence.seat);
      const CacheLayout& layout = config_.layout;
      for (auto i =
               static_cast<std::size_t>(sequence.first_position / layout.block_size * layout.num_lanes());
           i < table.size(); ++i)
        require(num_holders.at(table[i]) == 1, "3: a shared block is written", sequence.sequence);
    }
  }

  // By which sequences are served.
  std::pair<int, SequenceId> precedence(SequenceId id) const {
    const bool priorities = config_.policy == SchedulingPolicy::kPriority;
    return {priorities ? requests_.at(id).asked.priority : 0, id};
  }

  // What was in a lost step has the runner for itself until it gets a token.
  void check_suspects(const std::set<SequenceId>& planned, bool idle) {
    std::erase_if(suspects_, [this](SequenceId id) { return !alive_.contains(id); });
    const auto is_suspect = [this](SequenceId id) { return suspects_.contains(id); };
    if (std::any_of(planned.begin(), planned.end(), is_suspect))
      require(idle && planned.size() == 1, "a suspect is not alone", *planned.begin());
    for (const Step& step : in_flight_)
      for (const auto& [id, samples] : step.sequences) require(!is_suspect(id), "a suspect is not alone", id);
  }

  // 11: the first by precedence is in every step that follows an idle moment, and never left out for long.
  void check_progress(const std::set<SequenceId>& planned, bool idle) {
    const SequenceId first =
        *std::min_element(alive_.begin(), alive_.end(),
                          [this](SequenceId a, SequenceId b) { return precedence(a) < precedence(b); });
    if (planned.contains(first) || first != stalled_) stall_ = 0;
    stalled_ = first;
    if (!suspects_.empty()) stall_ = 0;  // they come before it, one by one
    if (planned.contains(first) || !suspects_.empty()) return;
    require(!idle, "11: the first is left out", first);
    require(++stall_ < stall_limit(), "11: the first starves", first);
  }

  void receive(const SequenceUpdate& update, TokenId sampled) {
    require(alive_.contains(update.id), "15: an update after the end", update.id);
    Request& request = requests_.at(update.id);
    const auto num_prompt = static_cast<int>(request.asked.prompt.size());
    for (const float position : update.logits)
      require(position == static_cast<float>(request.num_logits++), "logits are missing or doubled",
              update.id);
    const bool kept = request.num_cached < 0 || request.num_cached == update.num_cached_tokens;
    require(kept && update.num_cached_tokens < num_prompt, "cached tokens", update.id);
    request.num_cached = update.num_cached_tokens;
    const bool may_hit = config_.enable_prefix_caching && !needs_every_position(request.asked.prompt_output);
    require(may_hit || request.num_cached == 0, "a hit that was not wanted", update.id);

    FinishReason finish = FinishReason::kNone;
    if (sampled == SequenceResult::kInvalidLogits) {
      finish = FinishReason::kError;
      require(!update.token, "a token of broken logits", update.id);
    } else if (sampled != SequenceResult::kNoToken) {
      History& history = runner_.histories.at(update.id);
      const int position = request.num_tokens++;
      require(update.token == history.token(position), "12, 13: another token than alone", update.id);
      if (history.is_stop(position))
        finish = FinishReason::kStop;
      else if (request.num_tokens == max_length(update.id))
        finish = FinishReason::kLength;
    } else if (is_pooled(request.asked.prompt_output)) {
      finish = FinishReason::kStop;
      require(!update.token && update.hidden == std::vector<float>{static_cast<float>(num_prompt)},
              "what is pooled is amiss", update.id);
    }
    require(update.finish == finish, "9: a wrong end", update.id);
    if (finish == FinishReason::kNone) return;
    alive_.erase(update.id);
    require(finish == FinishReason::kError || request.asked.prompt_output != OutputKind::kAll ||
                request.num_logits == num_prompt,
            "logits are missing", update.id);
  }

  // The sequence at which planning failed ends, and nobody else. False: there is none.
  bool receive_failures() {
    const bool failed = faulty_ != 0;
    const auto failures = scheduler_.take_planning_failures();
    require(failures.size() == (failed ? 1 : 0), "a loss is not reported", faulty_);
    if (!failed) return false;
    require(failures[0].id == faulty_ && failures[0].why == "injected", "a wrong loss", failures[0].id);
    require(alive_.erase(std::exchange(faulty_, 0)) == 1, "9: a wrong end", failures[0].id);
    return true;
  }

  int max_length(SequenceId id) const {
    const SequenceRequest& asked = requests_.at(id).asked;
    if (is_pooled(asked.prompt_output)) return static_cast<int>(asked.prompt.size()) + 1;
    return std::min({static_cast<int>(asked.prompt.size()) + asked.max_tokens, config_.max_model_len,
                     longest_in_cache() + 1});
  }
  // Up to as many tokens as fit, each row with what its windows need at once.
  int longest_in_cache() const {
    const int block_size = config_.layout.block_size;
    int rows = 0;
    for (int num_blocks = 0; rows * block_size < config_.max_model_len; ++rows) {
      num_blocks = 0;
      for (const int window : config_.layout.windows)
        num_blocks += window == 0 ? rows + 1 : std::min(rows + 1, blocks_across(window, block_size));
      if (num_blocks > config_.num_blocks) break;
    }
    return rows * block_size;
  }
  // Every younger sequence may first have to drain and yield.
  int stall_limit() const { return (depth_ + 1) * (config_.max_num_seqs + 1); }

  SchedulerConfig config_;
  int depth_;
  Scheduler scheduler_;
  FakeRunner runner_;
  std::map<SequenceId, Request> requests_;
  std::set<SequenceId> alive_;                  // added, and no end reported
  std::map<int, std::vector<BlockId>> tables_;  // by seat, as planned
  std::deque<Step> in_flight_;
  int fault_in_ = 0;               // planning fails at this many sequences from here; 0: not
  SequenceId faulty_ = 0;          // the one at which it failed
  std::set<SequenceId> suspects_;  // in lost steps, and without a token since
  TimePoint now_;
  SequenceId last_id_ = 0;
  std::uint64_t last_plan_ = 0;
  std::uint64_t num_block_copies_ = 0;
  std::uint64_t num_outside_ = 0;  // blocks before the windows of planned spans
  std::uint64_t num_foreseen_ = 0;
  SequenceId stalled_ = 0;
  int stall_ = 0;
};

}  // namespace quire::testing
