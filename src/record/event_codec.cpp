#include "record/event_codec.h"

#include <xxhash.h>

#include <limits>

#include "scheduler/plan_codec.h"

namespace quire {
namespace {

enum Event : std::uint8_t {
  kAdded = 1,
  kAborted,
  kPlanned,
  kNotPlanned,
  kApplied,
  kForeseen,
  kForked,
  kLost,
  kEnd
};

constexpr int kMostOutputs = 1 << 20;  // of a request

enum class Sampled : std::uint8_t { kNothing, kToken, kDropped, kInvalidLogits, kNoneLeft };

// The bits of a sequence in a plan.
enum : std::uint8_t {
  kOneToken = 1,
  kStarts = 2,
  kSamples = 4,
  kMasksStop = 8,
  kConstrained = 16,
  kNewRows = 32,
  kHasStates = 64,
  kOtherOutput = 128
};

OutputKind usual_output(bool samples) { return samples ? OutputKind::kLast : OutputKind::kNone; }

void write_copies(ByteWriter& out, std::span<const BlockCopy> copies) {
  out.number(copies.size());
  for (const auto& [from, to] : copies) {
    out.integer(from);
    out.integer(to);
  }
}

std::vector<BlockCopy> read_copies(ByteReader& in) {
  std::vector<BlockCopy> copies(in.size());
  for (auto& [from, to] : copies) {
    from = in.integer_as_int();
    to = in.integer_as_int();
  }
  return copies;
}

void write_sequence(ByteWriter& out, const SequencePlan& plan, SequenceId previous) {
  const bool has_states = plan.state_to != kNoBlock;
  const bool is_other = plan.output != usual_output(plan.sample);
  const int bits = (plan.num_tokens == 1 ? kOneToken : 0) | (plan.start ? kStarts : 0) |
                   (plan.sample ? kSamples : 0) | (plan.mask_stop ? kMasksStop : 0) |
                   (plan.constrained ? kConstrained : 0) | (plan.new_blocks.empty() ? 0 : kNewRows) |
                   (has_states ? kHasStates : 0) | (is_other ? kOtherOutput : 0);
  out.byte(static_cast<std::uint8_t>(bits));
  out.integer(static_cast<std::int64_t>(plan.sequence - previous));
  if (plan.num_tokens != 1) out.number(static_cast<std::uint64_t>(plan.num_tokens));
  if (plan.start) out.number(static_cast<std::uint64_t>(plan.seat));
  if (plan.start || plan.num_tokens != 1) out.number(static_cast<std::uint64_t>(plan.first_position));
  if (!plan.new_blocks.empty()) {
    out.number(static_cast<std::uint64_t>(plan.first_new_row));
    out.number(plan.new_blocks.size());
    for (const BlockId block : plan.new_blocks) out.integer(block);
  }
  if (has_states) {
    out.integer(plan.state_from);
    out.integer(plan.state_to);
  }
  if (is_other) out.byte(static_cast<std::uint8_t>(plan.output));
}

SequencePlan read_sequence(ByteReader& in, SequenceId previous) {
  SequencePlan plan;
  const std::uint8_t bits = in.byte();
  plan.sequence = previous + static_cast<SequenceId>(in.integer());
  plan.num_tokens = (bits & kOneToken) != 0 ? 1 : in.number_as<int>();
  plan.sample = (bits & kSamples) != 0;
  plan.mask_stop = (bits & kMasksStop) != 0;
  plan.constrained = (bits & kConstrained) != 0;
  plan.output = usual_output(plan.sample);
  if ((bits & kStarts) != 0) {
    plan.start.emplace();
    plan.seat = in.number_as<int>();
  }
  if (plan.start || plan.num_tokens != 1) plan.first_position = in.number_as<int>();
  if ((bits & kNewRows) != 0) {
    plan.first_new_row = in.number_as<int>();
    plan.new_blocks.resize(in.size());
    for (BlockId& block : plan.new_blocks) block = in.integer_as_int();
  }
  if ((bits & kHasStates) != 0) {
    plan.state_from = in.integer_as_int();
    plan.state_to = in.integer_as_int();
  }
  if ((bits & kOtherOutput) != 0) plan.output = OutputKind{in.number_as<std::uint8_t>(kNumOutputKinds - 1)};
  return plan;
}

StepPlan read_plan(ByteReader& in) {
  StepPlan plan;
  plan.id = in.number();
  plan.sequences.reserve(in.size());
  const std::size_t num_sequences = plan.sequences.capacity();
  std::int64_t num_tokens = 0;
  for (std::size_t i = 0; i < num_sequences; ++i) {
    const SequenceId previous = plan.sequences.empty() ? 0 : plan.sequences.back().sequence;
    num_tokens += plan.sequences.emplace_back(read_sequence(in, previous)).num_tokens;
  }
  if (num_tokens > std::numeric_limits<int>::max()) fail("step {} has {} tokens", plan.id, num_tokens);
  plan.num_tokens = static_cast<int>(num_tokens);
  plan.saves = read_copies(in);
  plan.block_copies = read_copies(in);
  plan.restores = read_copies(in);
  plan.state_copies.saves = read_copies(in);
  plan.state_copies.restores = read_copies(in);
  plan.decisions.resize(in.size());
  for (Decision& decision : plan.decisions) {
    decision.sequence = in.number();
    decision.kind = Decision::Kind{in.number_as<std::uint8_t>(Decision::kNumKinds - 1)};
    decision.why = Decision::Why{in.number_as<std::uint8_t>(Decision::kNumWhys - 1)};
    decision.count = in.integer_as_int();
  }
  return plan;
}

}  // namespace

TokenId PrefixNames::append(Chain& chain, TokenId token) const {
  chain.tail.push_back(token);
  if (static_cast<int>(chain.tail.size()) < block_size_) return 0;
  const std::size_t size = chain.tail.size() * sizeof(TokenId);
  chain.rows = XXH3_64bits_withSeed(chain.tail.data(), size, secret_ ^ chain.rows);
  chain.tail.clear();
  constexpr std::uint64_t kNames = std::numeric_limits<TokenId>::max() - kFirst;
  return static_cast<TokenId>(chain.rows % kNames) + kFirst;
}

std::uint64_t PrefixNames::name(std::string_view text) const {
  return text.empty() ? 0 : XXH3_64bits_withSeed(text.data(), text.size(), secret_) | 1;
}

void write_plan(ByteWriter& out, const StepPlan& plan) {
  out.number(plan.id);
  out.number(plan.sequences.size());
  SequenceId previous = 0;
  for (const SequencePlan& sequence : plan.sequences)
    write_sequence(out, sequence, std::exchange(previous, sequence.sequence));
  for (const auto& copies :
       {plan.saves, plan.block_copies, plan.restores, plan.state_copies.saves, plan.state_copies.restores})
    write_copies(out, copies);
  out.number(plan.decisions.size());
  for (const Decision& decision : plan.decisions) {
    out.number(decision.sequence);
    out.number(static_cast<std::uint64_t>(decision.kind));
    out.number(static_cast<std::uint64_t>(decision.why));
    out.integer(decision.count);
  }
}

void EventWriter::begin() {
  out_.clear();
  out_.number(time_);
  event_ = out_.size();
  last_time_ = time_;
}

void EventWriter::end() { kind(kEnd); }

void EventWriter::kind(std::uint8_t kind) {
  event_ = out_.size();
  out_.byte(kind);
  out_.number(time_ - std::exchange(last_time_, time_));
}

// One that is known to follow.
void EventWriter::token(PrefixNames::Chain& chain, TokenId token, FinishReason finish) {
  const TokenId name = names_.append(chain, token);
  if (format_.with_tokens)
    out_.number(static_cast<std::uint64_t>(token));
  else if (finish != FinishReason::kStop)  // none follows
    out_.number(static_cast<std::uint64_t>(name));
}

void EventWriter::added(const SequenceRequest& request) {
  kind(kAdded);
  out_.number(request.id);
  out_.number(static_cast<std::uint64_t>(request.num_outputs));
  out_.number(request.first_sibling);
  out_.number(static_cast<std::uint64_t>(request.beam_width));
  out_.number(static_cast<std::uint64_t>(request.max_tokens));
  out_.number(static_cast<std::uint64_t>(request.min_tokens));
  out_.number(static_cast<std::uint64_t>(request.prompt_output));
  out_.number((request.make_constraint ? 1U : 0U) | (request.may_jump ? 2U : 0U));
  out_.number(request.held_bytes);
  out_.fixed(names_.name(request.cache_salt));
  out_.integer(request.priority);
  out_.number(request.prompt.size());
  PrefixNames::Chain chain;
  for (const TokenId token : request.prompt) {
    const TokenId name = names_.append(chain, token);
    if (format_.with_tokens)
      out_.number(static_cast<std::uint64_t>(token));
    else if (name != 0)
      out_.fixed(name);
  }
  if (format_.with_tokens) {
    const std::vector<std::byte> sampling = encode(request.sampling);
    out_.number(sampling.size());
    out_.append(sampling);
  }
  for (int i = 0; i < request.num_outputs; ++i) chains_[request.id + static_cast<SequenceId>(i)] = chain;
}

void EventWriter::aborted(SequenceId id) {
  kind(kAborted);
  out_.number(id);
  chains_.erase(id);
}

void EventWriter::planned(const StepPlan* plan, std::span<const PlanningFailure> failures) {
  kind(plan != nullptr ? kPlanned : kNotPlanned);
  out_.number(failures.size());
  for (const PlanningFailure& failure : failures) {
    out_.number(failure.id);
    chains_.erase(failure.id);
  }
  if (plan != nullptr) write_plan(out_, *plan);
}

void EventWriter::applied(const StepResult& result, std::span<const SequenceUpdate> updates) {
  kind(kApplied);
  out_.number(result.sequences.size());
  auto update = updates.begin();
  for (const SequenceResult& sequence : result.sequences) {
    const bool has_one = update != updates.end() && update->id == sequence.sequence;
    this->result(sequence, has_one ? &*update++ : nullptr);
  }
}

void EventWriter::result(const SequenceResult& result, const SequenceUpdate* update) {
  const FinishReason finish = update == nullptr ? FinishReason::kNone : update->finish;
  const bool follows = update != nullptr && update->token;
  Sampled sampled = follows ? Sampled::kToken : Sampled::kDropped;
  if (result.token == SequenceResult::kNoToken) sampled = Sampled::kNothing;
  if (result.token == SequenceResult::kInvalidLogits) sampled = Sampled::kInvalidLogits;
  if (result.token == SequenceResult::kNoneLeft) sampled = Sampled::kNoneLeft;
  out_.byte(static_cast<std::uint8_t>(static_cast<int>(sampled) | static_cast<int>(finish) << 4));
  if (sampled == Sampled::kToken) token(chains_[result.sequence], result.token, finish);
  if (sampled == Sampled::kDropped && format_.with_tokens)
    out_.number(static_cast<std::uint64_t>(result.token));
  if (finish != FinishReason::kNone) chains_.erase(result.sequence);
}

void EventWriter::foreseen(SequenceId id, std::span<const SequenceUpdate> updates) {
  kind(kForeseen);
  out_.number(id);
  out_.number(updates.size());
  for (const SequenceUpdate& update : updates) {
    out_.byte(static_cast<std::uint8_t>(update.finish));
    token(chains_[id], *update.token, update.finish);
    if (update.finish != FinishReason::kNone) chains_.erase(id);
  }
}

void EventWriter::forked(SequenceId first, std::span<const BeamFork> forks) {
  kind(kForked);
  out_.number(first);
  out_.number(forks.size());
  std::map<SequenceId, PrefixNames::Chain> chains;
  for (SequenceId id = first; const BeamFork& fork : forks) {
    out_.number(fork.parent);
    PrefixNames::Chain& chain = chains[id++] = chains_[fork.parent];
    token(chain, fork.token, FinishReason::kNone);
  }
  for (const BeamFork& fork : forks) chains_.erase(fork.parent);
  for (auto& [id, chain] : chains) chains_[id] = std::move(chain);
}

void EventWriter::lost_steps(std::span<const SequenceUpdate> updates) {
  kind(kLost);
  for (const SequenceUpdate& update : updates) chains_.erase(update.id);
}

void EventReader::begin(std::span<const std::byte> chunk) {
  in_ = ByteReader(chunk);
  time_ = in_.number();
}

bool EventReader::read(SchedulerObserver& to) {
  if (in_.num_left() == 0) return false;
  const std::uint8_t kind = in_.byte();
  time_ += in_.number();
  switch (kind) {
    case kAdded:
      read_added(to);
      return true;
    case kAborted:
      to.aborted(in_.number());
      return true;
    case kPlanned:
    case kNotPlanned:
      read_planned(to, kind == kPlanned);
      return true;
    case kApplied:
      read_applied(to);
      return true;
    case kForeseen:
      read_foreseen(to);
      return true;
    case kForked:
      read_forked(to);
      return true;
    case kLost:
      in_flight_.clear();
      to.lost_steps({});
      return true;
    case kEnd:
      ended_ = true;
      return true;
    default:
      fail("{} is no kind of event", kind);
  }
}

void EventReader::read_added(SchedulerObserver& to) {
  SequenceRequest request;
  request.id = in_.number();
  request.num_outputs = in_.number_as<int>(kMostOutputs);
  request.first_sibling = in_.number();
  request.beam_width = in_.number_as<int>(kMostOutputs);
  request.max_tokens = in_.number_as<int>();
  request.min_tokens = in_.number_as<int>();
  request.prompt_output = OutputKind{in_.number_as<std::uint8_t>(kNumOutputKinds - 1)};
  const auto bits = in_.number_as<unsigned>(3);
  if ((bits & 1) != 0) request.make_constraint = [] { return nullptr; };
  request.may_jump = (bits & 2) != 0;
  request.held_bytes = in_.number();
  if (const auto salt = in_.fixed<std::uint64_t>(); salt != 0) request.cache_salt = format_text("{:x}", salt);
  request.priority = in_.integer_as_int();
  const auto rows = static_cast<std::size_t>(format_.with_tokens ? 1 : format_.block_size);
  request.prompt.resize(in_.number_as<std::size_t>((in_.num_left() + 1) * rows));
  if (format_.with_tokens) {
    for (TokenId& token : request.prompt) token = in_.number_as<TokenId>();
    request.sampling = decode_sampling(in_.take(in_.size()));
  } else {
    for (std::size_t i = rows; i <= request.prompt.size(); i += rows)
      request.prompt[i - 1] = in_.fixed<TokenId>();
    request.sampling.stop_ids = {EventFormat::kStopToken};
  }
  to.added(request);
}

void EventReader::read_planned(SchedulerObserver& to, bool has_plan) {
  std::vector<PlanningFailure> failures(in_.size());
  for (PlanningFailure& failure : failures) failure.id = in_.number();
  if (!has_plan) return to.planned(nullptr, failures);
  const StepPlan plan = read_plan(in_);
  std::vector<SequenceId>& ids = in_flight_.emplace_back();
  for (const SequencePlan& sequence : plan.sequences) ids.push_back(sequence.sequence);
  to.planned(&plan, failures);
}

FinishReason EventReader::read_finish(std::uint8_t code) const {
  if (code > static_cast<std::uint8_t>(FinishReason::kError)) fail("{} is no reason for an end", code);
  return FinishReason{code};
}

TokenId EventReader::read_token(FinishReason finish) {
  if (!format_.with_tokens && finish == FinishReason::kStop) return EventFormat::kStopToken;
  return in_.number_as<TokenId>();
}

// Of steps before the first chunk that was kept, the sequences are not known: their ids are 0.
void EventReader::read_applied(SchedulerObserver& to) {
  StepResult result;
  std::vector<SequenceUpdate> updates;
  std::vector<SequenceId> ids(in_.size());
  if (!in_flight_.empty()) {
    if (in_flight_.front().size() != ids.size())
      fail("a result of {} sequences to a plan of {}", ids.size(), in_flight_.front().size());
    ids = std::move(in_flight_.front());
    in_flight_.pop_front();
  }
  for (const SequenceId id : ids) {
    const std::uint8_t code = in_.byte();
    SequenceResult& sequence = result.sequences.emplace_back();
    sequence.sequence = id;
    const FinishReason finish = read_finish(code >> 4);
    switch (Sampled{static_cast<std::uint8_t>(code & 15)}) {
      case Sampled::kNothing:
        break;
      case Sampled::kToken:
        sequence.token = read_token(finish);
        break;
      case Sampled::kDropped:
        sequence.token = format_.with_tokens ? in_.number_as<TokenId>() : 0;
        break;
      case Sampled::kInvalidLogits:
        sequence.token = SequenceResult::kInvalidLogits;
        break;
      case Sampled::kNoneLeft:
        sequence.token = SequenceResult::kNoneLeft;
        break;
      default:
        fail("{} is nothing that is sampled", code & 15);
    }
    if (finish == FinishReason::kNone) continue;
    updates.emplace_back().id = id;
    updates.back().finish = finish;
  }
  to.applied(result, updates);
}

void EventReader::read_foreseen(SchedulerObserver& to) {
  const SequenceId id = in_.number();
  std::vector<SequenceUpdate> updates(in_.size());
  for (SequenceUpdate& update : updates) {
    update.id = id;
    update.finish = read_finish(in_.byte());
    update.token = read_token(update.finish);
  }
  to.foreseen(id, updates);
}

void EventReader::read_forked(SchedulerObserver& to) {
  const SequenceId first = in_.number();
  std::vector<BeamFork> forks(in_.size());
  for (BeamFork& fork : forks) {
    fork.parent = in_.number();
    fork.token = read_token(FinishReason::kNone);
  }
  to.forked(first, forks);
}

}  // namespace quire
