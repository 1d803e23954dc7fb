#include "runner/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/ops.h"
#include "runner/pooler.h"

namespace quire {
namespace {

// A row that lies on the host, with num_top tokens, the most likely ones or those named.
PositionLogprobs read_row(const LogprobRows& rows, std::int64_t i, int num_top, bool named = false) {
  const std::int64_t cols = rows.ids.dim(1);
  const auto* ids = rows.ids.data_as<const std::int32_t>() + i * cols;
  const auto* logprobs = rows.logprobs.data_as<const float>() + i * cols;
  PositionLogprobs position{.token = {ids[0], logprobs[0], rows.ranks.data_as<const std::int32_t>()[i]},
                            .top = {}};
  position.top.reserve(num_top);
  for (int c = 1; c <= num_top; ++c) position.top.push_back({ids[c], logprobs[c], named ? 0 : c});
  return position;
}

}  // namespace

Sampler::Sampler(Backend& backend, Communicator& comm, const LmHead& head, const RuntimeConfig& config,
                 Workspace& workspace)
    : backend_(backend),
      comm_(comm),
      head_(head),
      config_(config),
      token_states_(backend, config, workspace),
      workspace_(workspace.scratch(
          "sampling", backend.sampling_workspace_bytes(config.max_output_rows(), config.spec.vocab_size))),
      output_rows_(workspace.allocate(config.dtype, {config.max_output_rows(), config.spec.hidden_size})),
      logprobs_(workspace.scratch(
          "logprobs", LogprobRows::bytes(config.max_output_rows(),
                                         std::max(config.max_logprobs,
                                                  std::min(kMaxNamedLogprobs, config.spec.vocab_size))))),
      seats_(static_cast<std::size_t>(config.max_num_seqs)) {
  const std::int64_t share = comm.rows_a_share(config.max_num_seqs);
  last_tokens_ = workspace.allocate(DType::kI32, {config.max_num_seqs});
  tokens_ = workspace.allocate(DType::kI32, {share * comm.size()});
  own_tokens_ = workspace.allocate(DType::kI32, {share});
}

Sampler::Samples Sampler::make_samples() const {
  return {.tokens = backend_.allocate(seats_.size() * sizeof(TokenId), MemoryKind::kHost),
          .logprobs = backend_.allocate(logprobs_.bytes(), MemoryKind::kHost)};
}

std::size_t Sampler::staging_bytes() const {
  const auto rows = static_cast<std::size_t>(config_.max_output_rows());
  constexpr std::size_t kArrays = 18;  // of the batch, the adjustment and the logprobs, with an entry a row
  constexpr std::size_t kBiases = SamplingState::kMaxBiases * (sizeof(TokenId) + sizeof(float));
  constexpr std::size_t kMasks =
      (SamplingState::kMaxStopIds + SamplingState::kMaxBadWords) * 2 * sizeof(TokenId);
  constexpr std::size_t kNamed = kMaxNamedLogprobs * sizeof(TokenId);
  constexpr std::size_t kAlignmentSlack = 64 * (kArrays + 7);
  return seats_.size() * sizeof(std::int32_t) + kArrays * (rows + 1) * sizeof(std::int64_t) +
         rows * (kBiases + kMasks + kNamed) + kAlignmentSlack;
}

void Sampler::build(const StepPlan& plan, StagingArea& staging, Samples& samples) {
  token_states_.begin_step();
  samples.rows.clear();
  std::int32_t num_tokens = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    if (sequence.start) start(sequence);
    num_tokens += sequence.num_tokens;
    if (!sequence.sample) continue;
    samples.rows.push_back({s, sequence.seat, num_tokens - 1, sequence.first_position + sequence.num_tokens,
                            sequence.mask_stop, sequence.constrained});
  }
  stage_rows(staging, samples);
  stage_adjustment(staging, samples);
  for (const Samples::Row& row : samples.rows) {
    seat_of(row.seat).has_sampled = true;
    ++seat_of(row.seat).num_unknown;
  }
}

void Sampler::start(const SequencePlan& plan) {
  Seat& seat = seat_of(plan.seat);
  seat = Seat();
  seat.state = *plan.start;
  seat.has_long_bad_words =
      std::ranges::any_of(seat.state.bad_words, [](const auto& word) { return word.size() > 1; });
  if (seat.has_long_bad_words) seat.output.assign(plan.history.begin() + plan.num_prompt, plan.history.end());
  if (seat.state.needs_token_states()) token_states_.start(plan);
}

void Sampler::stage_rows(StagingArea& staging, Samples& samples) {
  using Row = Samples::Row;
  const auto of_state = [&](auto member) {
    return staging.put(samples.rows, [&](const Row& row) { return seat_of(row.seat).state.*member; });
  };
  samples.hidden_rows = staging.put(samples.rows, &Row::hidden_row);
  samples.batch = {.num_rows = static_cast<int>(samples.rows.size()),
                   .temperature = of_state(&SamplingState::temperature),
                   .top_k = of_state(&SamplingState::top_k),
                   .top_p = of_state(&SamplingState::top_p),
                   .min_p = of_state(&SamplingState::min_p),
                   .seeds = of_state(&SamplingState::seed),
                   .positions = staging.put(samples.rows, &Row::position),
                   .seats = staging.put(samples.rows, &Row::seat),
                   .workspace = workspace_};
  const auto rows_of_seats = staging.take(std::ssize(seats_), samples.rows_of_seats);
  std::ranges::fill(rows_of_seats, -1);
  reported_rows_.clear();
  int num_top = 0;
  std::int32_t index = 0;
  bool names = false;
  for (const Row& row : samples.rows) {
    const SamplingState& state = seat_of(row.seat).state;
    if (state.num_logprobs != SamplingState::kNoLogprobs) reported_rows_.push_back(index);
    num_top = std::max(num_top, state.num_logprobs);
    names |= !state.logprob_ids.empty();
    rows_of_seats[row.seat] = index++;
  }
  samples.logprob_batch = {.num_rows = static_cast<int>(reported_rows_.size()),
                           .num_top = num_top,
                           .rows = staging.put(reported_rows_),
                           .tokens = tokens_.rows(0, index)};
  if (!names) return;
  samples.logprob_batch.named = staging.put(reported_rows_, [&](std::int32_t row) {
    std::array<TokenId, kMaxNamedLogprobs> ids;
    ids.fill(-1);
    std::ranges::copy(seat_of(samples.rows[row].seat).state.logprob_ids, ids.begin());
    return ids;
  });
}

void Sampler::stage_adjustment(StagingArea& staging, Samples& samples) {
  changes_.clear();
  biases_.clear();
  masks_.clear();
  const std::int64_t rows = std::ssize(samples.rows);
  // Rows that change with the help of token states, which are to be the same on every rank, change on all of
  // them; and rank 0 reports.
  samples.shared = may_share(rows) && reported_rows_.empty() &&
                   std::ranges::none_of(samples.rows, [this](const Samples::Row& row) {
                     return seat_of(row.seat).state.needs_token_states();
                   });
  const auto [begin, count] = samples.shared ? comm_.share_of(rows) : RowRange{0, rows};
  for (std::int64_t row = 0; row < count; ++row)
    add_change(samples.rows[begin + row], static_cast<std::int32_t>(row));
  samples.adjustment = {};
  if (changes_.empty()) return;
  const auto of_state = [&](auto member) {
    return staging.put(changes_, [&](const Change& c) { return seat_of(c.seat).state.*member; });
  };
  const auto starts = [&](std::int32_t Change::*first, std::size_t end) {
    Tensor tensor;
    const auto staged = staging.take(std::ssize(changes_) + 1, tensor);
    std::ranges::transform(changes_, staged.begin(), first);
    staged.back() = static_cast<std::int32_t>(end);
    return tensor;
  };
  samples.adjustment = {.num_rows = static_cast<int>(changes_.size()),
                        .rows = staging.put(changes_, &Change::row),
                        .seats = staging.put(changes_, &Change::seat),
                        .state_uses = staging.put(changes_, &Change::use),
                        .repetition = of_state(&SamplingState::repetition_penalty),
                        .frequency = of_state(&SamplingState::frequency_penalty),
                        .presence = of_state(&SamplingState::presence_penalty),
                        .bias_starts = starts(&Change::first_bias, biases_.size()),
                        .bias_ids = staging.put(biases_, &SamplingState::Bias::id),
                        .bias_values = staging.put(biases_, &SamplingState::Bias::value),
                        .mask_starts = starts(&Change::first_mask, masks_.size()),
                        .masks = staging.put(masks_),
                        .token_states = token_states_.tensor()};
}

std::size_t Sampler::mask_staging_bytes() const {
  const auto words = static_cast<std::size_t>(StepMasks::words(config_.spec.vocab_size));
  constexpr std::size_t kAlignmentSlack = 64 * 2;
  return seats_.size() * (words + 1) * sizeof(std::uint32_t) + kAlignmentSlack;
}

void Sampler::mask(const StepMasks& masks, StagingArea& staging, Samples& samples) const {
  const auto words = static_cast<std::size_t>(StepMasks::words(config_.spec.vocab_size));
  const auto rows = staging.take(samples.adjustment.num_rows, samples.adjustment.bitmask_rows);
  std::ranges::fill(rows, -1);
  Tensor flat;
  const auto bits = staging.take<std::uint32_t>(std::ssize(masks.bits), flat);
  std::ranges::copy(masks.bits, bits.begin());
  const auto num_masks = static_cast<std::int64_t>(masks.bits.size() / words);
  samples.adjustment.bitmasks =
      Tensor(flat.data(), DType::kI32, {num_masks, static_cast<std::int64_t>(words)}, flat.device());
  auto mask = masks.rows.begin();
  for (Samples::Row& row : samples.rows) {
    if (!row.constrained) continue;
    QUIRE_CHECK(mask != masks.rows.end() && *mask >= 0 && *mask < num_masks);
    if (row.change >= 0) rows[row.change] = *mask;
    row.allowed = bits.subspan(static_cast<std::size_t>(*mask++) * words, words);
  }
  QUIRE_CHECK(mask == masks.rows.end());
}

// Adds the row to those that are changed, if it is one of them.
void Sampler::add_change(Samples::Row& sampled, std::int32_t row) {
  const Seat& seat = seat_of(sampled.seat);
  const SamplingState& state = seat.state;
  const auto first_bias = static_cast<std::int32_t>(biases_.size());
  const std::size_t first_mask = masks_.size();
  if (sampled.mask_stop)
    for (const TokenId id : state.stop_ids) masks_.push_back({id, -1});
  // The last token of a bad word is masked where the output ends with those before it. The output's very last
  // token may not be known here: then the device compares it.
  QUIRE_CHECK(!seat.has_long_bad_words || seat.num_unknown <= 1);
  for (const std::vector<TokenId>& word : state.bad_words) {
    const std::size_t before = word.size() - 1;
    const bool last_is_unknown = seat.num_unknown > 0 && before > 0;
    if (ends_with(seat.output, word, last_is_unknown ? before - 1 : before))
      masks_.push_back({word.back(), last_is_unknown ? word[before - 1] : -1});
  }
  biases_.insert(biases_.end(), state.biases.begin(), state.biases.end());
  const bool uses_states = state.needs_token_states();
  if (!uses_states && !sampled.constrained && state.biases.empty() && masks_.size() == first_mask) return;

  const bool counts_last = state.has_penalties() && seat.has_sampled;
  const StateUse use = !uses_states  ? StateUse::kNone
                       : counts_last ? StateUse::kCountLastAndRead
                                     : StateUse::kRead;
  sampled.change = static_cast<std::int32_t>(changes_.size());
  changes_.push_back({row, sampled.seat, use, first_bias, static_cast<std::int32_t>(first_mask)});
}

StepOutputs Sampler::compute_logits(const Tensor& hidden) const {
  const Tensor part = head_.forward(hidden);
  return {hidden, part, may_share(hidden.dim(0)) ? Tensor() : head_.gather(part)};
}

// The logits of some rows, from what the step has computed of them.
Tensor Sampler::logits_of(const StepOutputs& step, std::int64_t row, std::int64_t count) const {
  if (step.logits.defined()) return step.logits.rows(row, count);
  return head_.gather(step.logits_part.defined() ? step.logits_part.rows(row, count)
                                                 : head_.forward(step.hidden.rows(row, count)));
}

void Sampler::sample(Samples& samples, StepOutputs step) {
  const std::int64_t rows = samples.batch.num_rows;
  if (rows == 0) return;
  if (!step.logits_part.defined()) {
    const Tensor picked = output_rows_.rows(0, rows);
    ops::gather_rows(backend_, picked, step.hidden, samples.hidden_rows);
    step = compute_logits(picked);
  }
  const Tensor tokens = tokens_.rows(0, rows);
  const bool adjusts = samples.adjustment.num_rows > 0, reports = samples.logprob_batch.num_rows > 0;
  if (samples.shared) {
    sample_share(samples, step.logits_part.rows(0, rows));
  } else {
    const Tensor all = logits_of(step, 0, rows);
    if (adjusts) ops::adjust_logits(backend_, all, last_tokens_, samples.adjustment);
    ops::sample(backend_, tokens, last_tokens_, all, samples.batch);
    if (reports) {
      // Log-probabilities are the model's own: what was changed in place is computed again, in the same
      // shape.
      const Tensor raw = adjusts ? head_.gather(head_.forward(step.hidden).rows(0, rows)) : all;
      samples.reported = report(samples.logprob_batch, raw, samples.logprobs.data());
    }
  }
  backend_.copy(Tensor(samples.tokens.data(), DType::kI32, {rows}), tokens);
}

// Each rank draws for its share of the rows, and tells the others.
void Sampler::sample_share(const Samples& samples, const Tensor& part) {
  const std::int64_t rows = part.dim(0);
  const std::int64_t share = comm_.rows_a_share(rows);
  const auto [begin, count] = comm_.share_of(rows);
  const Tensor logits = head_.gather_share(part);
  if (samples.adjustment.num_rows > 0) ops::adjust_logits(backend_, logits, last_tokens_, samples.adjustment);
  if (count > 0)
    ops::sample(backend_, own_tokens_.rows(0, count), last_tokens_, logits, samples.batch.rows(begin, count));
  const auto as_row = [](const Tensor& tokens, std::int64_t n) {
    return Tensor(tokens.data(), tokens.dtype(), {1, n}, tokens.device());
  };
  static_assert(SequenceResult::kInvalidLogits != -1, "all_gather may change it");
  comm_.all_gather(as_row(tokens_, share * comm_.size()), as_row(own_tokens_, share));
  ops::take_sampled_tokens(backend_, last_tokens_, samples.rows_of_seats, tokens_.rows(0, rows));
}

// Queues log-probabilities and their copy to `host`, where they will lie as the result says.
LogprobRows Sampler::report(const LogprobBatch& batch, const Tensor& logits, void* host) {
  const auto bytes = static_cast<std::int64_t>(LogprobRows::bytes(batch.num_rows, batch.num_top));
  const auto rows_at = [&](const Tensor& memory) {
    return LogprobRows::at(memory.data(), batch.num_rows, batch.num_top, memory.device());
  };
  const Tensor device = logprobs_.rows(0, bytes), copy(host, DType::kU8, {bytes});
  ops::log_probs(backend_, rows_at(device), logits, batch);
  backend_.copy(copy, device);
  return rows_at(copy);
}

// As many at a time as the head can hold.
void Sampler::read_positions(const SequencePlan& span, std::int64_t first, const StepOutputs& step,
                             const Tensor& next_tokens, SequenceResult& result) {
  const bool whole = span.output == OutputKind::kAll;
  const int num_top = seat_of(span.seat).state.num_prompt_logprobs;
  const std::int64_t vocab = config_.spec.vocab_size, most = config_.max_output_rows();
  const std::int64_t end = first + span.num_tokens - (!whole && span.next_token < 0 ? 1 : 0);
  if (whole) result.logits.resize(span.num_tokens * vocab);
  std::vector<std::byte> host(whole ? 0 : LogprobRows::bytes(most, num_top));
  for (std::int64_t row = first, count = 0; row < end; row += count) {
    count = std::min(most, end - row);
    const Tensor logits = logits_of(step, row, count);
    // A copy to memory that is not pinned waits, too, but looks after no rank.
    backend_.wait(backend_.record());
    if (whole) {
      float* out = result.logits.data() + (row - first) * vocab;
      for (std::int64_t i = 0; i < count; ++i)
        backend_.copy(Tensor(out + i * vocab, DType::kF32, {1, vocab}), logits.rows(i, 1));
      backend_.wait(backend_.record());
      continue;
    }
    const LogprobBatch batch = {.num_rows = static_cast<int>(count),
                                .num_top = num_top,
                                .rows = {},
                                .tokens = next_tokens.rows(row, count)};
    const LogprobRows reported = report(batch, logits, host.data());
    backend_.wait(backend_.record());
    for (std::int64_t i = 0; i < count; ++i) result.prompt_logprobs.push_back(read_row(reported, i, num_top));
  }
}

void Sampler::read_logits(const SequencePlan& span, std::int64_t row, const StepOutputs& step,
                          SequenceResult& result) {
  std::vector<float> all(config_.spec.vocab_size);
  backend_.copy(Tensor(all.data(), DType::kF32, {1, std::ssize(all)}), logits_of(step, row, 1));
  backend_.wait(backend_.record());
  std::vector<float> asked;
  for (const TokenId id : seat_of(span.seat).state.allowed_ids) asked.push_back(all[id]);
  answer_with(std::move(asked), result);
}

void Sampler::read(const Samples& samples, StepResult& result) {
  const auto* tokens = static_cast<const TokenId*>(samples.tokens.data());
  std::int64_t num_reported = 0;
  for (std::size_t i = 0; i < samples.rows.size(); ++i) {
    const Samples::Row& row = samples.rows[i];
    Seat& seat = seat_of(row.seat);
    SequenceResult& answer = result.sequences[row.sequence];
    answer.token = tokens[i];
    const bool none_left = tokens[i] < 0 && !seat.state.leaves_token(seat.output, row.mask_stop,
                                                                     config_.spec.vocab_size, row.allowed);
    --seat.num_unknown;
    if (seat.has_long_bad_words) seat.output.push_back(tokens[i]);
    if (seat.state.num_logprobs != SamplingState::kNoLogprobs)
      answer.logprobs = read_row(samples.reported, num_reported++, seat.state.num_logprobs,
                                 !seat.state.logprob_ids.empty());
    // A mask may have hidden from sampling what is not a number.
    if (answer.logprobs && std::isnan(answer.logprobs->token.logprob))
      answer.token = SequenceResult::kInvalidLogits;
    if (none_left) answer.token = SequenceResult::kNoneLeft;
  }
}

}  // namespace quire
