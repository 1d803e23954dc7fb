#include "runner/model_runner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ops/ops.h"

namespace quire {
namespace {

Tensor vector_of(const Tensor& column) {
  return Tensor(column.data(), column.dtype(), {column.numel()}, column.device());
}

// Numbers of sequences that graphs are recorded for: each one where a step is short and padding would show,
// then coarser.
std::vector<int> graph_sizes(int max_rows) {
  std::vector<int> sizes;
  const auto step_after = [](int rows) { return rows < 16 ? 1 : rows < 64 ? 8 : rows < 256 ? 16 : 32; };
  for (int rows = 1; rows <= max_rows; rows += step_after(rows)) sizes.push_back(rows);
  if (sizes.back() != max_rows) sizes.push_back(max_rows);
  return sizes;
}

// A row that lies on the host, with the num_top most likely tokens.
PositionLogprobs read_row(const LogprobRows& rows, std::int64_t i, int num_top) {
  const std::int64_t cols = rows.ids.dim(1);
  const auto* ids = rows.ids.data_as<const std::int32_t>() + i * cols;
  const auto* logprobs = rows.logprobs.data_as<const float>() + i * cols;
  PositionLogprobs position{.token = {ids[0], logprobs[0], rows.ranks.data_as<const std::int32_t>()[i]},
                            .top = {}};
  position.top.reserve(static_cast<std::size_t>(num_top));
  for (int rank = 1; rank <= num_top; ++rank) position.top.push_back({ids[rank], logprobs[rank], rank});
  return position;
}

// What is not finite is no answer.
void answer_with(std::vector<float> hidden, SequenceResult& result) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  if (std::all_of(hidden.begin(), hidden.end(), is_finite))
    result.hidden = std::move(hidden);
  else
    result.token = SequenceResult::kInvalidLogits;
}

}  // namespace

ModelRunner::ModelRunner(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                         const ModelConfig& model, WeightSource& weights)
    : backend_(backend),
      comm_(comm),
      config_(config),
      workspace_(backend, config.max_num_batched_tokens),
      model_(find_model_family(model.architecture())
                 .load(model,
                       {backend, comm, weights, workspace_, states_, config.dtype, config.max_output_rows(),
                        config.max_model_len, config.quantization, config.quantize_head})),
      batch_builder_(backend, config_, states_.groups()),
      hidden_sums_(backend, config_) {
  const auto bytes_of = [&](int blocks) { return config.block_bytes() * static_cast<std::size_t>(blocks); };
  cache_buffer_ = backend.allocate(bytes_of(config.num_blocks), MemoryKind::kDevice);
  backend.reserve(batch_builder_.attention_shapes());
  cache_ = cache_layers(cache_buffer_, config.num_blocks);
  QUIRE_CHECK(states_.group_of().size() == config.cache.places.size());
  for (const CacheShape::Place& place : config.cache.places) {
    caches_.push_back(cache_[static_cast<std::size_t>(place.index)]);
    lane_of_.push_back(place.lane);
  }
  if (config.num_host_blocks > 0) {
    host_cache_buffer_ = backend.allocate(bytes_of(config.num_host_blocks), MemoryKind::kHost);
    host_cache_ = cache_layers(host_cache_buffer_, config.num_host_blocks);
  }
  last_tokens_ = vector_of(workspace_.allocate(DType::kI32, config.max_num_seqs, 1));
  const std::int64_t share = comm.rows_a_share(config.max_num_seqs);
  tokens_ = vector_of(workspace_.allocate(DType::kI32, share * comm.size(), 1));
  own_tokens_ = vector_of(workspace_.allocate(DType::kI32, share, 1));
  output_rows_ = workspace_.allocate(config.dtype, config.max_output_rows(), config.spec.hidden_size);
  const std::size_t token_bytes = static_cast<std::size_t>(config.max_num_seqs) * sizeof(TokenId);
  const std::size_t logprob_bytes = LogprobRows::bytes(config.max_output_rows(), config.max_logprobs);
  logprobs_ = backend.allocate(logprob_bytes, MemoryKind::kDevice);
  const std::size_t hidden_bytes = output_rows_.bytes();
  for (int i = 0; i < kMaxInFlight; ++i) {
    stages_.push_back({batch_builder_.make_staging(), backend.allocate(token_bytes, MemoryKind::kHost),
                       backend.allocate(logprob_bytes, MemoryKind::kHost),
                       backend.allocate(hidden_bytes, MemoryKind::kHost)});
  }
}

// In memory: [layers of a block][blocks][kv heads][keys, values][block_size][head_dim].
std::vector<KvCacheLayer> ModelRunner::cache_layers(const Buffer& buffer, int num_blocks) const {
  const RuntimeConfig& c = config_;
  const std::int64_t half = std::int64_t{c.block_size()} * c.spec.head_dim;
  const std::int64_t layer = std::int64_t{num_blocks} * c.num_kv_heads * 2 * half;
  std::vector<KvCacheLayer> layers;
  for (int i = 0; i < c.cache.layers_per_block; ++i) {
    const auto half_at = [&](std::int64_t offset) {
      auto* data = static_cast<std::byte*>(buffer.data()) +
                   static_cast<std::size_t>(i * layer + offset) * size_of(c.dtype);
      return Tensor(data, c.dtype, {num_blocks, c.num_kv_heads, c.block_size(), c.spec.head_dim},
                    buffer.device())
          .with_strides({c.num_kv_heads * 2 * half, 2 * half, c.spec.head_dim, 1});
    };
    layers.push_back({half_at(0), half_at(half)});
  }
  return layers;
}

void ModelRunner::capture_graphs() {
  if (!config_.use_graphs) return;
  for (const int rows : graph_sizes(config_.max_output_rows())) {
    if (!capture_graph(rows)) return;
  }
}

// False: an op runs on the host, which no graph can hold.
bool ModelRunner::capture_graph(int rows) {
  const StepTensors step = batch_builder_.build(StepPlan{}, stages_.front().inputs, rows);
  const auto ops = [this, step, rows] {
    const Tensor hidden = forward(step);
    Logits logits{model_->compute_logits(hidden), {}};
    if (!may_share(rows)) logits.all = model_->gather_logits(logits.part);
    return std::pair(hidden, logits);
  };
  const auto [hidden, logits] = ops();  // as it must be before it is recorded; no sequence has a length
  // The inputs are written anew for the next one; and while a graph is made, no op may wait for another rank.
  backend_.wait(backend_.record());
  if (backend_.runs_on_host()) return false;
  auto graph = backend_.capture(ops);
  graphs_.push_back({rows, std::move(graph), hidden, logits});
  return true;
}

// The smallest graph that can run the plan, or null.
const ModelRunner::DecodeGraph* ModelRunner::find_graph(const StepPlan& plan) const {
  const auto plain = [](const SequencePlan& s) {
    return s.num_tokens == 1 && !is_pooled(s.output) && s.output != OutputKind::kLogprobs;
  };
  if (!std::all_of(plan.sequences.begin(), plan.sequences.end(), plain)) return nullptr;
  const auto found = std::find_if(graphs_.begin(), graphs_.end(), [&](const DecodeGraph& graph) {
    return graph.rows >= std::ssize(plan.sequences);
  });
  return found == graphs_.end() ? nullptr : &*found;
}

void ModelRunner::submit(const StepPlan& plan) { submit(plan, find_graph(plan)); }

OpTimes ModelRunner::submit_profiled(const StepPlan& plan) {
  backend_.start_profile();
  submit(plan, nullptr);
  return backend_.stop_profile();
}

void ModelRunner::submit(const StepPlan& plan, const DecodeGraph* graph) {
  QUIRE_CHECK(static_cast<int>(pending_.size()) < kMaxInFlight);
  Stage& stage = stages_[next_stage_];
  next_stage_ = (next_stage_ + 1) % stages_.size();

  const StepTensors step = batch_builder_.build(plan, stage.inputs, graph == nullptr ? 0 : graph->rows);
  Pending pending;
  pending.result.id = plan.id;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.sample) {
      pending.sampled.push_back({pending.result.sequences.size(), sequence.seat,
                                 batch_builder_.sampling().num_logprobs(sequence.seat), sequence.mask_stop});
    }
    pending.result.sequences.emplace_back().sequence = sequence.sequence;
  }
  ops::update_block_tables(backend_, batch_builder_.block_tables(), step.table_entries);
  copy_blocks(step);
  if (!plan.sequences.empty()) compute(plan, step, graph, stage, pending);
  pending.done = backend_.record();
  pending_.push_back(std::move(pending));
}

void ModelRunner::compute(const StepPlan& plan, const StepTensors& step, const DecodeGraph* graph,
                          Stage& stage, Pending& pending) {
  if (graph != nullptr) backend_.replay(*graph->graph);
  const Tensor hidden = graph != nullptr ? graph->hidden : forward(step);
  // What a graph has computed is read before it is changed, or anything computed in its place.
  if (graph != nullptr) read_prompts(plan, step, hidden, graph, pending.result);
  const auto num_sampled = static_cast<std::size_t>(step.sampling.batch.num_rows);
  if (graph != nullptr && num_sampled == plan.sequences.size()) {
    sample(step.sampling, hidden, graph->logits, stage, pending);
  } else if (num_sampled > 0) {
    const Tensor picked = rows_to_sample(step, hidden);
    sample(step.sampling, picked, {model_->compute_logits(picked), {}}, stage, pending);
  }
  if (graph != nullptr) return;
  read_prompts(plan, step, hidden, graph, pending.result);
  pool(plan, hidden, stage, pending);
}

void ModelRunner::copy_blocks(const StepTensors& step) {
  if (step.saves.dim(0) > 0) ops::copy_blocks(backend_, host_cache_, cache_, step.saves);
  for (const BlockId block : std::exchange(to_poison_, {})) poison_block(block);
  if (step.block_copies.dim(0) > 0) ops::copy_blocks(backend_, cache_, cache_, step.block_copies);
  if (step.restores.dim(0) > 0) ops::copy_blocks(backend_, cache_, host_cache_, step.restores);
}

Tensor ModelRunner::forward(const StepTensors& tensors) {
  ops::take_sampled_tokens(backend_, tensors.token_ids, tensors.source_seats, last_tokens_);
  std::vector<AttentionBatch> batches = tensors.batches;
  batch_builder_.plan_attention(batches);
  return model_->forward({tensors.token_ids, batches.front().positions, batches, caches_, lane_of_});
}

Tensor ModelRunner::rows_to_sample(const StepTensors& step, const Tensor& hidden) {
  const Tensor picked = output_rows_.rows(0, step.sampling.batch.num_rows);
  ops::gather_rows(backend_, picked, hidden, step.sampling.rows);
  return picked;
}

Tensor ModelRunner::gathered(const Logits& logits, std::int64_t row, std::int64_t count) {
  return logits.all.defined() ? logits.all.rows(row, count)
                              : model_->gather_logits(logits.part.rows(row, count));
}

// Whether so many rows may be drawn by sample_share: where they are few, it takes longer.
bool ModelRunner::may_share(std::int64_t rows) const { return comm_.size() > 1 && rows >= 2 * comm_.size(); }

// Of the first rows of `logits`, which were computed from `hidden`; further rows are padding.
void ModelRunner::sample(const SamplingTensors& sampling, const Tensor& hidden, const Logits& logits,
                         Stage& stage, Pending& pending) {
  const std::int64_t rows = sampling.batch.num_rows;
  const Tensor tokens = tokens_.rows(0, rows);
  const bool adjusts = sampling.adjustment.num_rows > 0, reports = sampling.logprobs.num_rows > 0;
  // Rows change with the help of token states, which are to be the same on every rank, and rank 0 reports.
  if (may_share(rows) && !adjusts && !reports) {
    sample_share(sampling, logits.part.rows(0, rows));
  } else {
    const Tensor all = gathered(logits, 0, rows);
    if (adjusts) ops::adjust_logits(backend_, all, last_tokens_, sampling.adjustment);
    ops::sample(backend_, tokens, last_tokens_, all, sampling.batch);
    if (reports) {
      // Log-probabilities are the model's own: what was changed in place is computed again, in the same
      // shape.
      const Tensor raw = adjusts ? model_->gather_logits(model_->compute_logits(hidden).rows(0, rows)) : all;
      LogprobBatch batch = sampling.logprobs;
      batch.tokens = tokens;
      pending.logprobs = report_logprobs(batch, raw, stage.logprobs.data());
    }
  }
  backend_.copy(Tensor(stage.tokens.data(), DType::kI32, {rows}), tokens);
}

// Each rank draws for its share of the rows, and tells the others.
void ModelRunner::sample_share(const SamplingTensors& sampling, const Tensor& part) {
  const std::int64_t rows = part.dim(0);
  const std::int64_t share = comm_.rows_a_share(rows);
  const auto [begin, count] = comm_.share_of(rows);
  const Tensor logits = model_->gather_logits_share(part);
  if (count > 0)
    ops::sample(backend_, own_tokens_.rows(0, count), last_tokens_, logits,
                sampling.batch.rows(begin, count));
  const auto as_row = [](const Tensor& tokens, std::int64_t n) {
    return Tensor(tokens.data(), tokens.dtype(), {1, n}, tokens.device());
  };
  static_assert(SequenceResult::kInvalidLogits != -1, "all_gather may change it");
  comm_.all_gather(as_row(tokens_, share * comm_.size()), as_row(own_tokens_, share));
  ops::take_sampled_tokens(backend_, last_tokens_, sampling.rows_of_seats, tokens_.rows(0, rows));
}

// Queues their computation and their copy to `host`, where they will lie as the result says.
LogprobRows ModelRunner::report_logprobs(const LogprobBatch& batch, const Tensor& logits, void* host) {
  const auto bytes = static_cast<std::int64_t>(LogprobRows::bytes(batch.num_rows, batch.num_top));
  QUIRE_CHECK(bytes <= static_cast<std::int64_t>(logprobs_.bytes()));
  ops::log_probs(backend_,
                 LogprobRows::at(logprobs_.data(), batch.num_rows, batch.num_top, backend_.device()), logits,
                 batch);
  backend_.copy(Tensor(host, DType::kU8, {bytes}),
                Tensor(logprobs_.data(), DType::kU8, {bytes}, backend_.device()));
  return LogprobRows::at(host, batch.num_rows, batch.num_top, DeviceKind::kCpu);
}

// What sequences want of every position.
void ModelRunner::read_prompts(const StepPlan& plan, const StepTensors& step, const Tensor& hidden,
                               const DecodeGraph* graph, StepResult& result) {
  std::int64_t row = 0;
  std::int64_t target = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    if (sequence.output == OutputKind::kAll) {
      const auto logits_of = [&](std::int64_t first, std::int64_t count) {
        if (graph == nullptr) return all_logits(hidden.rows(row + first, count));
        return gathered(graph->logits, row, 1);
      };
      read_logits(sequence.num_tokens, logits_of, result.sequences[s]);
    } else if (sequence.output == OutputKind::kLogprobs) {
      const std::int64_t count = sequence.num_tokens - (sequence.next_token < 0 ? 1 : 0);
      read_prompt_logprobs(hidden.rows(row, count), step.sampling.prompt_targets.rows(target, count),
                           batch_builder_.sampling().num_prompt_logprobs(sequence.seat), result.sequences[s]);
      target += count;
    }
    row += sequence.num_tokens;
  }
}

// Of num_rows rows, as many at a time as the head can hold; logits_of(first, count) computes some.
void ModelRunner::read_logits(std::int64_t num_rows, const LogitsOf& logits_of, SequenceResult& result) {
  const std::int64_t vocab = config_.spec.vocab_size;
  result.logits.resize(static_cast<std::size_t>(num_rows * vocab));
  for (std::int64_t row = 0; row < num_rows; row += config_.max_output_rows()) {
    const std::int64_t count = std::min<std::int64_t>(config_.max_output_rows(), num_rows - row);
    const Tensor rows = logits_of(row, count);
    backend_.wait(
        backend_.record());  // a copy to memory that is not pinned waits, too, but looks after no rank
    for (std::int64_t i = 0; i < count; ++i) {
      float* out = &result.logits[static_cast<std::size_t>((row + i) * vocab)];
      backend_.copy(Tensor(out, DType::kF32, {1, vocab}), rows.rows(i, 1));
    }
  }
  backend_.wait(backend_.record());
}

// The same, of which only the log-probabilities leave the device.
void ModelRunner::read_prompt_logprobs(const Tensor& hidden, const Tensor& targets, int num_top,
                                       SequenceResult& result) {
  std::vector<std::byte> host(LogprobRows::bytes(config_.max_output_rows(), num_top));
  for (std::int64_t row = 0; row < hidden.dim(0); row += config_.max_output_rows()) {
    const std::int64_t count = std::min<std::int64_t>(config_.max_output_rows(), hidden.dim(0) - row);
    const LogprobBatch batch{.num_rows = static_cast<int>(count),
                             .num_top = num_top,
                             .rows = {},
                             .tokens = targets.rows(row, count)};
    const Tensor logits = all_logits(hidden.rows(row, count));
    backend_.wait(backend_.record());  // as above
    const LogprobRows rows = report_logprobs(batch, logits, host.data());
    backend_.wait(backend_.record());
    for (std::int64_t i = 0; i < count; ++i) result.prompt_logprobs.push_back(read_row(rows, i, num_top));
  }
}

// Last positions are copied behind the step, and there when it is collected; a sum waits for its rows.
void ModelRunner::pool(const StepPlan& plan, const Tensor& hidden, const Stage& stage, Pending& pending) {
  std::int64_t row = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    const std::int64_t first = std::exchange(row, row + sequence.num_tokens);
    if (sequence.output == OutputKind::kLastHidden) {
      backend_.copy(last_hidden_row(stage, pending.last_hidden.size()), hidden.rows(row - 1, 1));
      pending.last_hidden.push_back(s);
    } else if (adds_up(sequence.output)) {
      hidden_sums_.add(sequence, hidden.rows(first, sequence.num_tokens));
      if (sequence.output == OutputKind::kHiddenMean)
        answer_with(hidden_sums_.take_mean(sequence.seat), pending.result.sequences[s]);
    }
  }
}

Tensor ModelRunner::last_hidden_row(const Stage& stage, std::size_t row) const {
  const std::int64_t rows = config_.max_output_rows();
  return Tensor(stage.hidden.data(), config_.dtype, {rows, config_.spec.hidden_size})
      .rows(static_cast<std::int64_t>(row), 1);
}

StepResult ModelRunner::collect() {
  QUIRE_CHECK(!pending_.empty());
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  backend_.wait(pending.done);
  const std::size_t stage = (next_stage_ + stages_.size() - pending_.size() - 1) % stages_.size();
  const auto* tokens = static_cast<const TokenId*>(stages_[stage].tokens.data());
  for (std::size_t row = 0; row < pending.last_hidden.size(); ++row) {
    std::vector<float> hidden(static_cast<std::size_t>(config_.spec.hidden_size));
    convert(config_.dtype, last_hidden_row(stages_[stage], row).data(), DType::kF32, hidden.data(),
            hidden.size());
    answer_with(std::move(hidden), pending.result.sequences[pending.last_hidden[row]]);
  }
  std::int64_t reported = 0;
  for (std::size_t row = 0; row < pending.sampled.size(); ++row) {
    const Pending::Sample& sample = pending.sampled[row];
    SequenceResult& result = pending.result.sequences[sample.sequence];
    result.token = tokens[row];
    const bool none_left =
        tokens[row] < 0 && !batch_builder_.sampling().leaves_token(sample.seat, sample.mask_stop);
    batch_builder_.sampling().book(sample.seat, tokens[row]);
    if (sample.num_logprobs != SamplingState::kNoLogprobs)
      result.logprobs = read_row(pending.logprobs, reported++, sample.num_logprobs);
    // A mask may have hidden from sampling what is not a number.
    if (result.logprobs && std::isnan(result.logprobs->token.logprob))
      result.token = SequenceResult::kInvalidLogits;
    if (none_left) result.token = SequenceResult::kNoneLeft;
  }
  return std::move(pending.result);
}

void ModelRunner::poison_block(BlockId block) {
  const auto layers = static_cast<std::size_t>(config_.cache.layers_per_block);
  const std::size_t bytes = config_.block_bytes() / layers;
  std::vector<std::uint8_t> nan(bytes, 0xFF);  // in every float type
  const auto size = static_cast<std::int64_t>(bytes);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    const std::size_t index =
        layer * static_cast<std::size_t>(config_.num_blocks) + static_cast<std::size_t>(block);
    auto* place = static_cast<std::uint8_t*>(cache_buffer_.data()) + index * bytes;
    backend_.copy(Tensor(place, DType::kU8, {size}, backend_.device()),
                  Tensor(nan.data(), DType::kU8, {size}));
  }
  backend_.wait(backend_.record());
}

void ModelRunner::drop_in_flight() {
  pending_.clear();
  next_stage_ = 0;
  backend_.wait(backend_.record());  // also for what a step that failed had queued
}

}  // namespace quire
