#include "record/replayer.h"

#include <array>
#include <memory>
#include <stdexcept>

#include "base/format.h"

namespace quire {
namespace {

constexpr std::array<const char*, Decision::kNumWhys> kWhys = {
    "",
    "no tokens left in the step",
    "its most tokens in a step",
    "blocks",
    "seats",
    "slots of states",
    "states are kept behind them",
    "another's priority",
    "a sibling computes what is shared",
    "blocks are given back when steps in flight end",
    "a step was lost"};

std::string to_text(const Decision& decision) {
  const char* const why = kWhys[static_cast<std::size_t>(decision.why)];
  switch (decision.kind) {
    case Decision::Kind::kAdmitted:
      return format_text("  sequence {} admitted, {} tokens of it computed\n", decision.sequence,
                         decision.count);
    case Decision::Kind::kPreempted:
      return format_text("  sequence {} preempted ({}), {} blocks saved\n", decision.sequence, why,
                         decision.count);
    case Decision::Kind::kCut:
      return format_text("  sequence {} cut by {} tokens ({})\n", decision.sequence, decision.count, why);
    case Decision::Kind::kWaits:
      break;
  }
  const std::string lacks =
      decision.why == Decision::Why::kBlocks ? format_text("{} more ", decision.count) : "";
  return format_text("  sequence {} waits for: {}{}\n", decision.sequence, lacks, why);
}

std::string to_text(const char* what, std::span<const BlockCopy> copies) {
  if (copies.empty()) return {};
  std::string text = format_text("  {}:", what);
  for (const auto& [from, to] : copies) text += format_text(" {}>{}", from, to);
  return text + "\n";
}

std::string list(std::span<const BlockId> blocks) {
  std::string text;
  for (const BlockId block : blocks) text += block == kNoBlock ? " -" : format_text(" {}", block);
  return text;
}

std::string to_text(const SequencePlan& plan) {
  std::string text = format_text("  sequence {}: {} token{}", plan.sequence, plan.num_tokens,
                                 plan.num_tokens == 1 ? "" : "s");
  if (plan.start || plan.num_tokens != 1) text += format_text(" from {}", plan.first_position);
  if (plan.start) text += format_text(", in seat {}", plan.seat);
  if (plan.sample) text += plan.constrained ? ", sampled under a mask" : ", sampled";
  if (plan.mask_stop) text += ", no end";
  if (plan.output > OutputKind::kLast) text += format_text(", output {}", static_cast<int>(plan.output));
  if (!plan.new_blocks.empty())
    text += format_text(", rows from {}:{}", plan.first_new_row, list(plan.new_blocks));
  if (plan.state_to != kNoBlock) text += format_text(", states {}>{}", plan.state_from, plan.state_to);
  return text + "\n";
}

bool is_equal(const StepPlan& a, const StepPlan& b) {
  ByteWriter first, second;
  write_plan(first, a);
  write_plan(second, b);
  return first.bytes == second.bytes;
}

const char* state_of(const Sequence& sequence) {
  switch (sequence.state) {
    case SequenceState::kRunning:
      return sequence.held ? "held" : "running";
    case SequenceState::kRetiring:
      return "ended, in flight";
    case SequenceState::kWaiting:
      break;
  }
  return sequence.held ? "parked" : "waiting";
}

}  // namespace

std::string to_text(const StepPlan& plan) {
  std::string text =
      format_text("step {}: {} tokens of {} sequences\n", plan.id, plan.num_tokens, plan.sequences.size());
  for (const Decision& decision : plan.decisions) text += to_text(decision);
  text += to_text("saved", plan.saves);
  text += to_text("copied", plan.block_copies);
  text += to_text("restored", plan.restores);
  text += to_text("states saved", plan.state_copies.saves);
  text += to_text("states restored", plan.state_copies.restores);
  for (const SequencePlan& sequence : plan.sequences) text += to_text(sequence);
  return text;
}

std::string to_text(const Scheduler& scheduler) {
  const SchedulerStats stats = scheduler.stats();
  std::string text =
      format_text("{} of {} blocks free, {} run, {} wait, {} in flight\n", stats.num_free_blocks,
                  stats.num_blocks, stats.num_running, stats.num_waiting, scheduler.num_in_flight());
  if (stats.num_host_blocks > 0)
    text += format_text("{} of {} blocks of host memory free\n", stats.num_free_host_blocks,
                        stats.num_host_blocks);
  if (stats.num_state_slots > 0)
    text += format_text("{} of {} slots of states free\n", stats.num_free_state_slots, stats.num_state_slots);
  for (const auto& [id, sequence] : scheduler.sequences()) {
    text += format_text("sequence {}: {}, {} tokens of {}, {} of them computed", id, state_of(sequence),
                        sequence.length(), sequence.max_length, sequence.num_planned());
    if (sequence.num_cached_tokens > 0)
      text += format_text(", {} from the cache", sequence.num_cached_tokens);
    if (const auto& saved = sequence.blocks.saved.blocks; !saved.empty())
      text += format_text(", {} blocks in host memory", saved.size());
    text += format_text("\n  blocks:{}\n", list(sequence.blocks.table.blocks()));
  }
  return text;
}

Replayer::Replayer(SchedulerConfig config)
    : scheduler_([&] {
        config.on_plan = [this](SequenceId id) {
          if (failing_.contains(id)) throw std::runtime_error("as it was recorded");
        };
        return std::move(config);
      }()) {}

// What goes wrong here did not when it was recorded.
template <typename Work>
void Replayer::guarded(const Work& work) try {
  if (!difference_) work();
} catch (const std::exception& e) {
  differ(e.what());
}

void Replayer::added(const SequenceRequest& request) {
  ++num_requests_;
  guarded([&] { scheduler_.add(std::make_shared<SequenceRequest>(request)); });
}

void Replayer::aborted(SequenceId id) {
  guarded([&] {
    if (!scheduler_.abort(id)) differ(format_text("sequence {} was aborted, and has ended here", id));
  });
}

void Replayer::planned(const StepPlan* plan, std::span<const PlanningFailure> failures) {
  guarded([&] {
    failing_.clear();
    for (const PlanningFailure& failure : failures) failing_.insert(failure.id);
    const std::optional<StepPlan>& own = plan_ = scheduler_.schedule();
    scheduler_.take_planning_failures();
    if (own) {
      step_ = own->id;
      num_tokens_ += static_cast<std::uint64_t>(own->num_tokens);
    }
    if (own.has_value() != (plan != nullptr) || (own && !is_equal(*own, *plan)))
      difference_ = {plan != nullptr ? plan->id : step_, "the plans differ",
                     plan != nullptr ? to_text(*plan) : "no plan\n", own ? to_text(*own) : "no plan\n"};
  });
}

void Replayer::compare_ends(std::span<const SequenceUpdate> recorded,
                            std::span<const SequenceUpdate> replayed) {
  auto next = recorded.begin();
  for (const SequenceUpdate& update : replayed) {
    if (update.finish == FinishReason::kNone) continue;
    if (next == recorded.end() || next->id != update.id || next->finish != update.finish)
      return differ(format_text("sequence {} ends here with {}", update.id, to_string(update.finish)));
    ++next;
  }
  if (next != recorded.end())
    differ(format_text("sequence {} ended with {}, and goes on here", next->id, to_string(next->finish)));
}

void Replayer::applied(const StepResult& result, std::span<const SequenceUpdate> updates) {
  guarded([&] {
    StepResult own = result;
    own.id = ++applied_;
    compare_ends(updates, scheduler_.apply(std::move(own)));
  });
}

void Replayer::foreseen(SequenceId id, std::span<const SequenceUpdate> updates) {
  guarded([&] {
    std::vector<TokenId> tokens;
    for (const SequenceUpdate& update : updates) tokens.push_back(*update.token);
    scheduler_.foresee(id, tokens);
  });
}

void Replayer::forked(SequenceId first, std::span<const BeamFork> forks) {
  guarded([&] { scheduler_.fork_beams(first, forks); });
}

void Replayer::lost_steps(std::span<const SequenceUpdate> /*updates*/) {
  guarded([&] {
    scheduler_.fail_in_flight();
    applied_ = step_;
  });
}

}  // namespace quire
