#include "runner/model_runner.h"

#include <algorithm>

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

}  // namespace

ModelRunner::ModelRunner(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                         const ModelConfig& model, WeightSource& weights)
    : backend_(backend),
      config_(config),
      workspace_(backend, config.max_num_batched_tokens),
      batch_builder_(backend, config_) {
  const LoadContext context{
      backend, comm, weights, workspace_, config.dtype, config.max_output_rows(), config.max_model_len};
  model_ = find_model_family(model.architecture()).load(model, context);
  allocate_cache();
  last_tokens_ = vector_of(workspace_.allocate(DType::kI32, config.max_num_seqs, 1));
  tokens_ = vector_of(workspace_.allocate(DType::kI32, config.max_num_seqs, 1));
  output_rows_ = workspace_.allocate(config.dtype, config.max_output_rows(), config.spec.hidden_size);
  for (int i = 0; i < kMaxInFlight; ++i) {
    stages_.push_back({batch_builder_.make_staging(),
                       backend.allocate(static_cast<std::size_t>(config.max_num_seqs) * sizeof(TokenId),
                                        MemoryKind::kHost)});
  }
}

// In memory: [layers][blocks][kv heads][keys, values][block_size][head_dim].
void ModelRunner::allocate_cache() {
  const RuntimeConfig& c = config_;
  const std::int64_t half = std::int64_t{c.block_size} * c.spec.head_dim;
  const std::int64_t layer = std::int64_t{c.num_blocks} * c.num_kv_heads * 2 * half;
  cache_buffer_ =
      backend_.allocate(c.block_bytes() * static_cast<std::size_t>(c.num_blocks), MemoryKind::kDevice);
  for (int i = 0; i < c.spec.num_layers; ++i) {
    const auto half_at = [&](std::int64_t offset) {
      auto* data = static_cast<std::byte*>(cache_buffer_.data()) +
                   static_cast<std::size_t>(i * layer + offset) * size_of(c.dtype);
      return Tensor(data, c.dtype, {c.num_blocks, c.num_kv_heads, c.block_size, c.spec.head_dim},
                    backend_.device())
          .with_strides({c.num_kv_heads * 2 * half, 2 * half, c.spec.head_dim, 1});
    };
    cache_.push_back({half_at(0), half_at(half)});
  }
}

void ModelRunner::capture_graphs() {
  if (!config_.use_graphs) return;
  for (const int rows : graph_sizes(config_.max_output_rows())) capture_graph(rows);
}

void ModelRunner::capture_graph(int rows) {
  const StepTensors step = batch_builder_.build(StepPlan{}, stages_.front().inputs, rows);
  const auto ops = [this, step] { return model_->compute_logits(forward(step)); };
  const Tensor logits = ops();  // as it must be before it is recorded; no sequence has a length
  auto graph = backend_.capture(ops);
  backend_.wait(backend_.record());  // the inputs are written anew for the next one
  graphs_.push_back({rows, std::move(graph), logits});
}

// The smallest graph that can run the plan, or null.
const ModelRunner::DecodeGraph* ModelRunner::find_graph(const StepPlan& plan) const {
  const auto plain = [](const SequencePlan& s) {
    return s.num_tokens == 1 && s.sample && s.output != OutputKind::kAll;
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

  Pending pending;
  pending.result.id = plan.id;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.sample) pending.sampled.push_back({pending.result.sequences.size(), sequence.slot});
    pending.result.sequences.push_back({.sequence = sequence.sequence, .logits = {}});
  }
  const StepTensors step = batch_builder_.build(plan, stage.inputs, graph == nullptr ? 0 : graph->rows);
  const std::int64_t rows = step.sampling.batch.num_rows;
  const Tensor host_tokens(stage.tokens.data(), DType::kI32, {rows});
  ops::update_block_tables(backend_, batch_builder_.block_tables(), step.table_entries);
  if (step.block_copies.dim(0) > 0) ops::copy_blocks(backend_, cache_, step.block_copies);
  if (graph != nullptr) {
    backend_.replay(*graph->graph);
    sample(step, graph->logits.rows(0, rows), host_tokens);
  } else {
    const Tensor hidden = forward(step);
    if (rows > 0) sample(step, logits_to_sample(step, hidden), host_tokens);
    read_logits(plan, hidden, pending.result);
  }
  pending.done = backend_.record();
  pending_.push_back(std::move(pending));
}

Tensor ModelRunner::forward(const StepTensors& step) {
  ops::fill_last_tokens(backend_, step.token_ids, step.source_slots, last_tokens_);
  ops::plan_attention(backend_, step.attention, batch_builder_.attention_shape());
  return model_->forward({step.token_ids, step.attention, cache_});
}

Tensor ModelRunner::logits_to_sample(const StepTensors& step, const Tensor& hidden) {
  const Tensor picked = output_rows_.rows(0, step.sampling.batch.num_rows);
  ops::gather_rows(backend_, picked, hidden, step.sampling.rows);
  return model_->compute_logits(picked);
}

void ModelRunner::sample(const StepTensors& step, const Tensor& logits, const Tensor& host_tokens) {
  const SamplingTensors& sampling = step.sampling;
  const Tensor tokens = tokens_.rows(0, sampling.batch.num_rows);
  if (sampling.adjustment.num_rows > 0)
    ops::adjust_logits(backend_, logits, last_tokens_, sampling.adjustment);
  ops::sample(backend_, tokens, last_tokens_, logits, sampling.batch);
  backend_.copy(host_tokens, tokens);
}

// Logits of every position of the sequences that ask for them, as many rows at a time as the head can hold.
void ModelRunner::read_logits(const StepPlan& plan, const Tensor& hidden, StepResult& result) {
  std::int64_t first_row = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    if (sequence.output == OutputKind::kAll) {
      std::vector<float>& logits = result.sequences[s].logits;
      logits.resize(static_cast<std::size_t>(sequence.num_tokens) * config_.spec.vocab_size);
      for (std::int64_t row = 0; row < sequence.num_tokens; row += config_.max_output_rows()) {
        const std::int64_t count =
            std::min<std::int64_t>(config_.max_output_rows(), sequence.num_tokens - row);
        const Tensor rows = model_->compute_logits(hidden.rows(first_row + row, count));
        for (std::int64_t i = 0; i < count; ++i) {
          float* out = &logits[static_cast<std::size_t>((row + i) * config_.spec.vocab_size)];
          backend_.copy(Tensor(out, DType::kF32, {1, config_.spec.vocab_size}), rows.rows(i, 1));
        }
      }
      backend_.wait(backend_.record());
    }
    first_row += sequence.num_tokens;
  }
}

StepResult ModelRunner::collect() {
  QUIRE_CHECK(!pending_.empty());
  Pending pending = std::move(pending_.front());
  pending_.pop_front();
  backend_.wait(pending.done);
  const std::size_t stage = (next_stage_ + stages_.size() - pending_.size() - 1) % stages_.size();
  const auto* tokens = static_cast<const TokenId*>(stages_[stage].tokens.data());
  for (std::size_t row = 0; row < pending.sampled.size(); ++row) {
    const Pending::Sample& sample = pending.sampled[row];
    pending.result.sequences[sample.sequence].token = tokens[row];
    batch_builder_.book(sample.slot, tokens[row]);
  }
  return std::move(pending.result);
}

void ModelRunner::drop_in_flight() {
  for (const Pending& pending : pending_) backend_.wait(pending.done);
  pending_.clear();
  next_stage_ = 0;
}

}  // namespace quire
