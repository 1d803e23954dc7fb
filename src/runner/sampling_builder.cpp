#include "runner/sampling_builder.h"

#include <algorithm>

namespace quire {
namespace {

template <typename T>
Tensor stage(StagingArea& staging, DType dtype, const std::vector<T>& values) {
  Tensor tensor;
  const auto staged = staging.take<T>(dtype, std::ssize(values), tensor);
  std::copy(values.begin(), values.end(), staged.begin());
  return tensor;
}

}  // namespace

SamplingBuilder::SamplingBuilder(Backend& backend, const RuntimeConfig& config)
    : config_(config),
      workspace_(allocate_workspace(
          backend, backend.sampling_workspace_bytes(config.max_output_rows(), config.spec.vocab_size))),
      token_states_(backend, config),
      seats_(static_cast<std::size_t>(config.max_num_seqs)) {}

std::size_t SamplingBuilder::staging_bytes() const {
  const auto rows = static_cast<std::size_t>(config_.max_output_rows());
  constexpr std::size_t kArrays = 18;  // of the batch, the adjustment and the logprobs, with an entry a row
  constexpr std::size_t kBiases = SamplingState::kMaxBiases * (sizeof(TokenId) + sizeof(float));
  constexpr std::size_t kMasks =
      (SamplingState::kMaxStopIds + SamplingState::kMaxBadWords) * 2 * sizeof(TokenId);
  constexpr std::size_t kAlignmentSlack = 64 * (kArrays + 6);
  const std::size_t targets = static_cast<std::size_t>(config_.max_num_batched_tokens) * sizeof(TokenId);
  return targets + seats_.size() * sizeof(std::int32_t) + kArrays * (rows + 1) * sizeof(std::int64_t) +
         rows * (kBiases + kMasks) + kAlignmentSlack;
}

void SamplingBuilder::start(const SequencePlan& plan) {
  Seat& seat = seat_of(plan);
  seat = Seat();
  seat.state = *plan.start;
  seat.has_long_bad_words = std::any_of(seat.state.bad_words.begin(), seat.state.bad_words.end(),
                                        [](const auto& word) { return word.size() > 1; });
  if (seat.has_long_bad_words) seat.output.assign(plan.history.begin() + plan.num_prompt, plan.history.end());
  if (seat.state.has_penalties() || !seat.state.allowed_ids.empty()) token_states_.start(plan);
}

bool SamplingBuilder::leaves_token(int seat, bool mask_stop) const {
  const Seat& owner = seats_[static_cast<std::size_t>(seat)];
  return owner.state.leaves_token(owner.output, mask_stop, config_.spec.vocab_size);
}

void SamplingBuilder::book(int seat, TokenId token) {
  Seat& owner = seats_[static_cast<std::size_t>(seat)];
  --owner.num_unknown;
  if (owner.has_long_bad_words) owner.output.push_back(token);
}

SamplingTensors SamplingBuilder::build(const StepPlan& plan, StagingArea& staging) {
  SamplingTensors tensors;
  stage_rows(plan, staging, tensors);
  stage_logprobs(plan, staging, tensors);
  gather_adjustments(plan);
  if (!changed_.rows.empty()) tensors.adjustment = stage_adjustments(staging);
  for (const SequencePlan& sequence : plan.sequences) {
    if (!sequence.sample) continue;
    seat_of(sequence).has_sampled = true;
    ++seat_of(sequence).num_unknown;
  }
  return tensors;
}

void SamplingBuilder::stage_rows(const StepPlan& plan, StagingArea& staging, SamplingTensors& tensors) const {
  SamplingBatch& batch = tensors.batch;
  batch.workspace = workspace_of(workspace_);
  const auto samples = [](const SequencePlan& sequence) { return sequence.sample; };
  const auto n = std::count_if(plan.sequences.begin(), plan.sequences.end(), samples);
  batch.num_rows = static_cast<int>(n);
  const auto rows = staging.take<std::int32_t>(DType::kI32, n, tensors.rows);
  const auto temperature = staging.take<float>(DType::kF32, n, batch.temperature);
  const auto top_k = staging.take<std::int32_t>(DType::kI32, n, batch.top_k);
  const auto top_p = staging.take<float>(DType::kF32, n, batch.top_p);
  const auto min_p = staging.take<float>(DType::kF32, n, batch.min_p);
  const auto seeds = staging.take<std::int64_t>(DType::kI64, n, batch.seeds);
  const auto positions = staging.take<std::int32_t>(DType::kI32, n, batch.positions);
  const auto seats = staging.take<std::int32_t>(DType::kI32, n, batch.seats);
  const auto rows_of_seats =
      staging.take<std::int32_t>(DType::kI32, std::ssize(seats_), tensors.rows_of_seats);
  std::fill(rows_of_seats.begin(), rows_of_seats.end(), -1);

  std::size_t row = 0;
  std::int32_t token = 0;
  for (const SequencePlan& sequence : plan.sequences) {
    token += sequence.num_tokens;
    if (!sequence.sample) continue;
    const SamplingState& state = seat_of(sequence).state;
    rows[row] = token - 1;
    temperature[row] = state.temperature;
    top_k[row] = state.top_k;
    top_p[row] = state.top_p;
    min_p[row] = state.min_p;
    seeds[row] = static_cast<std::int64_t>(state.seed);
    positions[row] = sequence.first_position + sequence.num_tokens;
    seats[row] = sequence.seat;
    rows_of_seats[static_cast<std::size_t>(sequence.seat)] = static_cast<std::int32_t>(row);
    ++row;
  }
}

void SamplingBuilder::stage_logprobs(const StepPlan& plan, StagingArea& staging, SamplingTensors& tensors) {
  reported_rows_.clear();
  prompt_targets_.clear();
  LogprobBatch& batch = tensors.logprobs;
  std::int32_t row = 0;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.output == OutputKind::kLogprobs) {
      prompt_targets_.insert(prompt_targets_.end(), sequence.tokens.begin() + 1, sequence.tokens.end());
      if (sequence.next_token >= 0) prompt_targets_.push_back(sequence.next_token);
    }
    if (!sequence.sample) continue;
    if (const int wanted = seat_of(sequence).state.num_logprobs; wanted != SamplingState::kNoLogprobs) {
      reported_rows_.push_back(row);
      batch.num_top = std::max(batch.num_top, wanted);
    }
    ++row;
  }
  batch.num_rows = static_cast<int>(reported_rows_.size());
  batch.rows = stage(staging, DType::kI32, reported_rows_);
  tensors.prompt_targets = stage(staging, DType::kI32, prompt_targets_);
}

void SamplingBuilder::gather_adjustments(const StepPlan& plan) {
  for (auto* ints : {&changed_.rows, &changed_.seats, &changed_.state_uses, &changed_.bias_starts,
                     &changed_.bias_ids, &changed_.mask_starts, &changed_.masks}) {
    ints->clear();
  }
  for (auto* floats :
       {&changed_.repetition, &changed_.frequency, &changed_.presence, &changed_.bias_values}) {
    floats->clear();
  }
  std::int32_t row = 0;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.sample) add_adjustment(sequence, row++);
  }
  changed_.bias_starts.push_back(static_cast<std::int32_t>(changed_.bias_ids.size()));
  changed_.mask_starts.push_back(static_cast<std::int32_t>(changed_.masks.size() / 2));
}

// Adds the row to those that are changed, if it is.
void SamplingBuilder::add_adjustment(const SequencePlan& sequence, std::int32_t row) {
  const Seat& seat = seat_of(sequence);
  const SamplingState& state = seat.state;
  const std::size_t first_mask = changed_.masks.size();
  if (sequence.mask_stop) {
    for (const TokenId id : state.stop_ids) changed_.masks.insert(changed_.masks.end(), {id, -1});
  }
  mask_bad_words(seat);
  const bool uses_states = state.has_penalties() || !state.allowed_ids.empty();
  if (!uses_states && state.biases.empty() && changed_.masks.size() == first_mask) return;

  const bool counts_last = state.has_penalties() && seat.has_sampled;
  const StateUse use = !uses_states  ? StateUse::kNone
                       : counts_last ? StateUse::kCountLastAndRead
                                     : StateUse::kRead;
  changed_.rows.push_back(row);
  changed_.seats.push_back(sequence.seat);
  changed_.state_uses.push_back(static_cast<std::int32_t>(use));
  changed_.repetition.push_back(state.repetition_penalty);
  changed_.frequency.push_back(state.frequency_penalty);
  changed_.presence.push_back(state.presence_penalty);
  changed_.bias_starts.push_back(static_cast<std::int32_t>(changed_.bias_ids.size()));
  changed_.mask_starts.push_back(static_cast<std::int32_t>(first_mask / 2));
  for (const SamplingState::Bias& bias : state.biases) {
    changed_.bias_ids.push_back(bias.id);
    changed_.bias_values.push_back(bias.value);
  }
}

// The last token of a bad word is masked where the output ends with those before it. The output's very last
// token may not be known here: then the device compares it.
void SamplingBuilder::mask_bad_words(const Seat& seat) {
  QUIRE_CHECK(!seat.has_long_bad_words || seat.num_unknown <= 1);
  for (const std::vector<TokenId>& word : seat.state.bad_words) {
    const std::size_t before = word.size() - 1;
    const bool last_is_unknown = seat.num_unknown > 0 && before > 0;
    if (ends_with(seat.output, word, last_is_unknown ? before - 1 : before)) {
      changed_.masks.insert(changed_.masks.end(), {word.back(), last_is_unknown ? word[before - 1] : -1});
    }
  }
}

LogitsAdjustment SamplingBuilder::stage_adjustments(StagingArea& staging) const {
  return {.num_rows = static_cast<int>(changed_.rows.size()),
          .rows = stage(staging, DType::kI32, changed_.rows),
          .seats = stage(staging, DType::kI32, changed_.seats),
          .state_uses = stage(staging, DType::kI32, changed_.state_uses),
          .repetition = stage(staging, DType::kF32, changed_.repetition),
          .frequency = stage(staging, DType::kF32, changed_.frequency),
          .presence = stage(staging, DType::kF32, changed_.presence),
          .bias_starts = stage(staging, DType::kI32, changed_.bias_starts),
          .bias_ids = stage(staging, DType::kI32, changed_.bias_ids),
          .bias_values = stage(staging, DType::kF32, changed_.bias_values),
          .mask_starts = stage(staging, DType::kI32, changed_.mask_starts),
          .masks = staging.take_rows(changed_.masks, 2),
          .token_states = token_states_.tensor()};
}

}  // namespace quire
