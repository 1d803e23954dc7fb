#include "runner/model_runner.h"

#include <utility>

#include "ops/ops.h"

namespace quire {

ModelRunner::ModelRunner(Backend& backend, Communicator& comm, const RuntimeConfig& config,
                         const ModelConfig& model, WeightSource& weights,
                         const std::function<void(std::size_t done, std::size_t total)>& on_layer)
    : backend_(backend),
      config_(config),
      workspace_(backend, config.max_num_batched_tokens),
      states_(config.cache_policy),
      model_(find_model_family(model.architecture())
                 .load(model, {backend, comm, weights, workspace_, states_, config.dtype,
                               config.max_output_rows(), config.max_model_len, config.quantization,
                               config.quantize_head, config.weight_only, on_layer})),
      sampler_(backend, comm, model_->head(), config_, workspace_),
      batch_builder_(backend, config_, states_.groups(), workspace_),
      pooler_(backend, config_),
      cache_(backend, config_),
      fixed_states_(backend, config_) {
  QUIRE_CHECK(states_.group_of().size() == config.cache.places.size() &&
              states_.fixed().size() == config.cache.fixed.size());
  backend.reserve(batch_builder_.attention_shapes());
  const Buffer inputs =
      backend.allocate(batch_builder_.staging_bytes() + sampler_.staging_bytes(), MemoryKind::kDevice);
  for (int i = 0; i < kMaxStepsInFlight; ++i)
    steps_.push_back({{backend, inputs}, {}, sampler_.make_samples(), pooler_.make_rows()});
}

void ModelRunner::capture_graphs() {
  if (!config_.use_graphs) return;
  for (const StepBounds& bounds : graph_bounds({config_.max_output_rows(), config_.max_model_len})) {
    StagingArea& staging = steps_.front().inputs;
    staging.clear();
    const StepTensors inputs = batch_builder_.build(StepPlan{}, staging, bounds);
    staging.upload();
    const auto queue_step = [this, inputs] { return sampler_.compute_logits(forward(inputs)); };
    // As it must be before it is recorded; no sequence has a length.
    const StepOutputs outputs = queue_step();
    // The inputs are written anew for the next one; and while a graph is made, no op may wait for another
    // rank.
    backend_.wait(backend_.record());
    if (backend_.runs_on_host()) return;  // which no graph can hold
    graphs_.push_back({bounds, backend_.capture(queue_step), outputs});
  }
}

OpTimes ModelRunner::submit_profiled(const StepPlan& plan) {
  backend_.start_profile();
  submit(plan, nullptr);
  return backend_.stop_profile();
}

void ModelRunner::submit(const StepPlan& plan, const DecodeGraph* graph) {
  QUIRE_CHECK(num_in_flight_ < steps_.size() && (num_in_flight_ == 0 || !newest().unsampled));
  InFlight& step = steps_[(oldest_ + num_in_flight_) % steps_.size()];
  step.unsampled.reset();
  step.result.id = plan.id;
  step.result.sequences.clear();
  for (const SequencePlan& span : plan.sequences)
    step.result.sequences.emplace_back().sequence = span.sequence;
  step.last_rows.sequences.clear();

  step.inputs.clear();
  const StepTensors inputs =
      batch_builder_.build(plan, step.inputs, graph == nullptr ? StepBounds{} : graph->bounds);
  sampler_.build(plan, step.inputs, step.samples);
  step.inputs.upload();
  ops::update_block_tables(backend_, batch_builder_.block_tables(), inputs.table_entries);
  cache_.copy(inputs.block_copies);
  fixed_states_.copy(inputs.state_copies);
  if (!plan.sequences.empty()) compute(plan, inputs, graph, step);
  step.done = backend_.record();
  ++num_in_flight_;
}

void ModelRunner::compute(const StepPlan& plan, const StepTensors& inputs, const DecodeGraph* graph,
                          InFlight& step) {
  if (graph != nullptr) backend_.replay(*graph->graph);
  const StepOutputs outputs = graph != nullptr ? graph->outputs : StepOutputs{forward(inputs)};
  // What is not sampled comes first: sampling changes the logits of a graph, or computes others in their
  // place.
  std::int64_t row = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& span = plan.sequences[s];
    const std::int64_t first = std::exchange(row, row + span.num_tokens);
    if (span.output == OutputKind::kLastLogits) {
      sampler_.read_logits(span, row - 1, outputs, step.result.sequences[s]);
    } else if (is_pooled(span.output)) {
      pooler_.add(span, outputs.hidden.rows(first, span.num_tokens), s, step.last_rows, step.result);
    } else if (of_every_position(span.output)) {
      sampler_.read_positions(span, first, outputs, inputs.next_tokens, step.result.sequences[s]);
    }
  }
  // A graph has computed logits of all sequences, in order.
  const bool all_sampled = step.samples.rows.size() == plan.sequences.size();
  const StepOutputs sampled = all_sampled ? outputs : StepOutputs{outputs.hidden};
  if (plan.constrained())
    step.unsampled = sampled;
  else
    sampler_.sample(step.samples, sampled);
}

void ModelRunner::sample(const StepMasks& masks) {
  QUIRE_CHECK(num_in_flight_ > 0 && newest().unsampled);
  InFlight& step = newest();
  if (mask_memory_.bytes() == 0)
    mask_memory_ = backend_.allocate(sampler_.mask_staging_bytes(), MemoryKind::kDevice);
  if (!step.masks) step.masks.emplace(backend_, mask_memory_);
  step.masks->clear();
  sampler_.mask(masks, *step.masks, step.samples);
  step.masks->upload();
  sampler_.sample(step.samples, *std::exchange(step.unsampled, std::nullopt));
  step.done = backend_.record();
}

Tensor ModelRunner::forward(const StepTensors& inputs) {
  ops::take_sampled_tokens(backend_, inputs.token_ids, inputs.source_seats, sampler_.last_tokens());
  std::vector<AttentionBatch> batches = inputs.batches;
  batch_builder_.plan_attention(batches);
  return model_->forward({inputs.token_ids, batches.front().positions, batches, cache_.layers(),
                          cache_.lane_of(), fixed_states_.states(), inputs.state_batch});
}

StepResult ModelRunner::collect() {
  QUIRE_CHECK(num_in_flight_ > 0);
  InFlight& step = steps_[oldest_];
  QUIRE_CHECK(!step.unsampled);
  oldest_ = (oldest_ + 1) % steps_.size();
  --num_in_flight_;
  backend_.wait(step.done);
  pooler_.read(step.last_rows, step.result);
  sampler_.read(step.samples, step.result);
  return std::move(step.result);
}

void ModelRunner::drop_in_flight() {
  num_in_flight_ = 0;
  backend_.wait(backend_.record());  // also for what a step that failed had queued
}

}  // namespace quire
