#include "record/event_codec.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <limits>

#include "quire/sampling_params.h"
#include "record/recording.h"
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

// What a result has for each code of what was sampled, as codes stand in a file; not for those of a token.
// That stands behind kToken, and where tokens are recorded behind kDropped, of a sequence that had ended.
constexpr std::size_t kToken = 1, kDropped = 2;
constexpr std::array<TokenId, 5> kSampled = {
    SequenceResult::kNoToken, {}, {}, SequenceResult::kInvalidLogits, SequenceResult::kNoneLeft};

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

// The bits of a request.
enum : unsigned { kConstraint = 1, kJumps = 2 };

// So that those of all that wait have a sum.
constexpr std::uint64_t kMostHeldBytes = std::uint64_t{1} << 40;

OutputKind usual_output(bool samples) { return samples ? OutputKind::kLast : OutputKind::kNone; }

// The walks write a value's fields, or read them into one that has none, by whether Io is a ByteWriter or a
// ByteReader.
template <typename Io>
void walk_sequence(Io& io, auto& plan, SequenceId previous) {
  auto bits = static_cast<std::uint8_t>(
      (plan.num_tokens == 1 ? kOneToken : 0) | (plan.start ? kStarts : 0) | (plan.sample ? kSamples : 0) |
      (plan.mask_stop ? kMasksStop : 0) | (plan.constrained ? kConstrained : 0) |
      (plan.new_blocks.empty() ? 0 : kNewRows) | (plan.state_to != kNoBlock ? kHasStates : 0) |
      (plan.output != usual_output(plan.sample) ? kOtherOutput : 0));
  auto difference = static_cast<std::int64_t>(plan.sequence - previous);
  io.byte(bits);
  io.integer(difference);
  if constexpr (Io::kReads) {
    plan.sequence = previous + static_cast<SequenceId>(difference);
    plan.num_tokens = 1;
    if ((bits & kStarts) != 0) plan.start.emplace();
    plan.sample = (bits & kSamples) != 0;
    plan.mask_stop = (bits & kMasksStop) != 0;
    plan.constrained = (bits & kConstrained) != 0;
    plan.output = usual_output(plan.sample);
  }
  if ((bits & kOneToken) == 0) io.number(plan.num_tokens);
  if (plan.start) io.number(plan.seat);
  if (plan.start || plan.num_tokens != 1) io.number(plan.first_position);
  if ((bits & kNewRows) != 0) {
    io.number(plan.first_new_row);
    io.size_of(plan.new_blocks);
    for (auto& block : plan.new_blocks) io.integer(block);
  }
  if ((bits & kHasStates) != 0) {
    io.integer(plan.state_from);
    io.integer(plan.state_to);
  }
  if ((bits & kOtherOutput) != 0) io.number(plan.output, kNumOutputKinds - 1);
}

template <typename Io>
void walk_plan(Io& io, auto& plan) {
  io.number(plan.id);
  io.size_of(plan.sequences);
  std::int64_t num_tokens = 0;
  for (SequenceId previous = 0; auto& sequence : plan.sequences) {
    walk_sequence(io, sequence, previous);
    previous = sequence.sequence;
    num_tokens += sequence.num_tokens;
  }
  if constexpr (Io::kReads) {
    if (num_tokens > std::numeric_limits<int>::max()) fail("step {} has {} tokens", plan.id, num_tokens);
    plan.num_tokens = static_cast<int>(num_tokens);
  }
  for (auto* const copies : {&plan.saves, &plan.block_copies, &plan.restores, &plan.state_copies.saves,
                             &plan.state_copies.restores}) {
    io.size_of(*copies);
    for (auto& [from, to] : *copies) {
      io.integer(from);
      io.integer(to);
    }
  }
  io.size_of(plan.decisions);
  for (auto& [sequence, kind, why, count] : plan.decisions) {
    io.number(sequence);
    io.number(kind, Decision::kNumKinds - 1);
    io.number(why, Decision::kNumWhys - 1);
    io.integer(count);
  }
}

// What stands before a request's prompt, but for its salt and its priority.
void walk_request(auto& io, auto& request, unsigned& bits) {
  io.number(request.id);
  io.number(request.num_outputs, kMaxOutputs);
  io.number(request.first_sibling);
  io.number(request.beam_width, kMaxOutputs);
  io.number(request.max_tokens);
  io.number(request.min_tokens);
  io.number(request.prompt_output, kNumOutputKinds - 1);
  io.number(bits, kConstraint | kJumps);
  io.number(request.held_bytes, kMostHeldBytes);
}

FinishReason finish_of(std::uint8_t code) {
  if (code > static_cast<std::uint8_t>(FinishReason::kError)) fail("{} is no reason for an end", code);
  return FinishReason{code};
}

}  // namespace

void write_plan(ByteWriter& out, const StepPlan& plan) { walk_plan(out, plan); }

// The name of the row that the token completes, which its tokens and all before them have in common with
// another of that name; 0: it completes none.
TokenId EventWriter::append(Chain& chain, TokenId token) const {
  chain.tail.push_back(token);
  if (static_cast<int>(chain.tail.size()) < format_.block_size) return 0;
  const std::size_t size = chain.tail.size() * sizeof(TokenId);
  chain.rows = XXH3_64bits_withSeed(chain.tail.data(), size, secret_ ^ chain.rows);
  chain.tail.clear();
  constexpr TokenId kFirst = EventFormat::kStopToken + 1;
  constexpr std::uint64_t kNames = std::numeric_limits<TokenId>::max() - kFirst;
  return static_cast<TokenId>(chain.rows % kNames) + kFirst;
}

// What stands for a text; 0 for none.
std::uint64_t EventWriter::name(std::string_view text) const {
  return text.empty() ? 0 : XXH3_64bits_withSeed(text.data(), text.size(), secret_) | 1;
}

void EventWriter::begin() {
  out_.bytes.clear();
  out_.number(time_);
  begin_ = event_ = out_.bytes.size();
  last_time_ = time_;
  num_at_begin_ = num_in_flight_;
}

void EventWriter::end() { kind(kEnd); }

void EventWriter::kind(std::uint8_t kind) {
  event_ = out_.bytes.size();
  out_.byte(kind);
  out_.number(time_ - std::exchange(last_time_, time_));
}

// One that is known to follow.
void EventWriter::token(Chain& chain, TokenId token, FinishReason finish) {
  const TokenId row = append(chain, token);
  if (format_.with_tokens)
    out_.number(token);
  else if (finish != FinishReason::kStop)  // none follows
    out_.number(row);
}

void EventWriter::added(const SequenceRequest& request) {
  kind(kAdded);
  unsigned bits = (request.make_constraint ? kConstraint : 0U) | (request.may_jump ? kJumps : 0U);
  walk_request(out_, request, bits);
  out_.fixed(name(request.cache_salt));
  out_.integer(request.priority);
  out_.number(request.prompt.size());
  Chain chain;
  for (const TokenId token : request.prompt) {
    const TokenId row = append(chain, token);
    if (format_.with_tokens)
      out_.number(token);
    else if (row != 0)
      out_.fixed(row);
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
  if (plan == nullptr) return;
  write_plan(out_, *plan);
  ++num_in_flight_;
}

void EventWriter::applied(const StepResult& result, std::span<const SequenceUpdate> updates) {
  kind(kApplied);
  --num_in_flight_;
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
  std::size_t sampled = follows ? kToken : kDropped;
  if (result.token < 0)
    sampled = static_cast<std::size_t>(std::ranges::find(kSampled, result.token) - kSampled.begin());
  out_.byte(static_cast<std::uint8_t>(sampled | static_cast<std::size_t>(finish) << 4));
  if (sampled == kToken) token(chains_[result.sequence], result.token, finish);
  if (sampled == kDropped && format_.with_tokens) out_.number(result.token);
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
  std::map<SequenceId, Chain> chains;
  for (SequenceId id = first; const BeamFork& fork : forks) {
    out_.number(fork.parent);
    Chain& chain = chains[id++] = chains_[fork.parent];
    token(chain, fork.token, FinishReason::kNone);
  }
  for (const BeamFork& fork : forks) chains_.erase(fork.parent);
  for (auto& [id, chain] : chains) chains_[id] = std::move(chain);
}

void EventWriter::lost_steps(std::span<const SequenceUpdate> updates) {
  kind(kLost);
  num_in_flight_ = 0;
  for (const SequenceUpdate& update : updates) chains_.erase(update.id);
}

void RecordingReader::read_event(SchedulerObserver& to) {
  const std::uint8_t kind = in_.byte();
  time_ += in_.next_number();
  switch (kind) {
    case kAdded:
      return read_added(to);
    case kAborted:
      return to.aborted(in_.next_number());
    case kPlanned:
    case kNotPlanned:
      return read_planned(to, kind == kPlanned);
    case kApplied:
      return read_applied(to);
    case kForeseen:
      return read_foreseen(to);
    case kForked:
      return read_forked(to);
    case kLost:
      in_flight_.clear();
      return to.lost_steps({});
    case kEnd:
      ended_ = true;
      return;
    default:
      fail("{} is no kind of event", kind);
  }
}

void RecordingReader::read_added(SchedulerObserver& to) {
  SequenceRequest request;
  unsigned bits = 0;
  walk_request(in_, request, bits);
  if ((bits & kConstraint) != 0) request.make_constraint = [] { return nullptr; };
  request.may_jump = (bits & kJumps) != 0;
  if (const auto salt = in_.fixed<std::uint64_t>(); salt != 0) request.cache_salt = format_text("{:x}", salt);
  in_.integer(request.priority);
  const auto rows = static_cast<std::size_t>(format_.with_tokens ? 1 : format_.block_size);
  request.prompt.resize(in_.next_number<std::size_t>((in_.num_left() + 1) * rows));
  if (format_.with_tokens) {
    for (TokenId& token : request.prompt) in_.number(token);
    request.sampling = decode_sampling(in_.take(in_.size()));
  } else {
    for (std::size_t i = rows; i <= request.prompt.size(); i += rows)
      request.prompt[i - 1] = in_.fixed<TokenId>();
    request.sampling.stop_ids = {EventFormat::kStopToken};
  }
  to.added(request);
}

void RecordingReader::read_planned(SchedulerObserver& to, bool has_plan) {
  std::vector<PlanningFailure> failures(in_.size());
  for (PlanningFailure& failure : failures) in_.number(failure.id);
  if (!has_plan) return to.planned(nullptr, failures);
  StepPlan plan;
  walk_plan(in_, plan);
  std::vector<SequenceId>& ids = in_flight_.emplace_back();
  for (const SequencePlan& sequence : plan.sequences) ids.push_back(sequence.sequence);
  to.planned(&plan, failures);
}

TokenId RecordingReader::read_token(FinishReason finish) {
  if (!format_.with_tokens && finish == FinishReason::kStop) return EventFormat::kStopToken;
  return in_.next_number<TokenId>();
}

// Of steps that were planned before the first chunk that was kept, the sequences are not known: their ids are
// 0.
void RecordingReader::read_applied(SchedulerObserver& to) {
  StepResult result;
  std::vector<SequenceUpdate> updates;
  std::vector<SequenceId> ids(in_.size());
  if (!in_flight_.empty()) {
    if (!in_flight_.front().empty()) {
      if (in_flight_.front().size() != ids.size())
        fail("a result of {} sequences to a plan of {}", ids.size(), in_flight_.front().size());
      ids = std::move(in_flight_.front());
    }
    in_flight_.pop_front();
  }
  for (const SequenceId id : ids) {
    const std::uint8_t code = in_.byte();
    SequenceResult& sequence = result.sequences.emplace_back();
    sequence.sequence = id;
    const FinishReason finish = finish_of(code >> 4);
    const std::size_t sampled = code & 15;
    if (sampled >= kSampled.size()) fail("{} is nothing that is sampled", sampled);
    sequence.token = kSampled[sampled];
    if (sampled == kToken) sequence.token = read_token(finish);
    if (sampled == kDropped && format_.with_tokens) in_.number(sequence.token);
    if (finish == FinishReason::kNone) continue;
    updates.emplace_back().id = id;
    updates.back().finish = finish;
  }
  to.applied(result, updates);
}

void RecordingReader::read_foreseen(SchedulerObserver& to) {
  const SequenceId id = in_.next_number();
  std::vector<SequenceUpdate> updates(in_.size());
  for (SequenceUpdate& update : updates) {
    update.id = id;
    update.finish = finish_of(in_.byte());
    update.token = read_token(update.finish);
  }
  to.foreseen(id, updates);
}

void RecordingReader::read_forked(SchedulerObserver& to) {
  const SequenceId first = in_.next_number();
  std::vector<BeamFork> forks(in_.size());
  for (BeamFork& fork : forks) {
    in_.number(fork.parent);
    fork.token = read_token(FinishReason::kNone);
  }
  to.forked(first, forks);
}

}  // namespace quire
