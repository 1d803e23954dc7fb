#include "runner/batch_builder.h"

#include <algorithm>

namespace quire {

BatchBuilder::BatchBuilder(Backend& backend, const RuntimeConfig& config, std::span<const StateSpec> groups,
                           Workspace& workspace)
    : backend_(backend), config_(config) {
  for (const StateSpec& group : groups) {
    shapes_.push_back({group.num_heads, group.num_kv_heads, group.head_dim, config.block_size(),
                       config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len, group.window,
                       group.code});
    workspaces_.push_back(workspace.scratch("attention" + std::to_string(shapes_.size()),
                                            backend.attention_workspace_bytes(shapes_.back())));
  }
  block_tables_ = workspace.allocate(
      DType::kI32, {table_index(config.cache.layout.num_lanes(), 0), config.max_table_rows()});
  host_tables_.resize(block_tables_.numel());
}

std::size_t BatchBuilder::staging_bytes() const {
  const auto tokens = static_cast<std::size_t>(config_.max_num_batched_tokens);
  const auto sequences = static_cast<std::size_t>(config_.max_num_seqs);
  const auto lanes = static_cast<std::size_t>(config_.cache.layout.num_lanes());
  const std::size_t token_arrays = (4 + lanes) * tokens * sizeof(std::int32_t);
  const std::size_t sequence_arrays =
      6 * (sequences + 1) * sizeof(std::int32_t) + sequences * sizeof(LongSpan);
  // Every seat could get all the blocks that it can hold from the cache.
  const std::size_t tables = 3 * sequences *
                             static_cast<std::size_t>(config_.max_blocks_held(config_.max_model_len)) *
                             sizeof(std::int32_t);
  const std::size_t copies = lanes * sequences * sizeof(BlockCopy);  // of the row that a sequence writes next
  const std::size_t swaps = 2 * static_cast<std::size_t>(config_.num_host_blocks) * sizeof(BlockCopy);
  const std::size_t state_swaps =
      2 * static_cast<std::size_t>(config_.num_host_state_slots) * sizeof(BlockCopy);
  const std::size_t alignment_slack = 64 * (20 + lanes);
  return token_arrays + sequence_arrays + tables + copies + swaps + state_swaps + alignment_slack;
}

void BatchBuilder::build_tokens(const StepPlan& plan, StagingArea& staging, const StepBounds& bounds,
                                StepTensors& tensors) const {
  AttentionBatch batch;
  batch.num_sequences = std::max(static_cast<int>(plan.sequences.size()), bounds.rows);
  batch.num_tokens = std::max(plan.num_tokens, bounds.rows);
  const auto asks = [](const SequencePlan& s) { return s.output == OutputKind::kLogprobs; };
  const bool wants_next = std::ranges::any_of(plan.sequences, asks);
  const auto ids = staging.take(batch.num_tokens, tensors.token_ids);
  const auto sources = staging.take(batch.num_tokens, tensors.source_seats);
  const auto positions = staging.take(batch.num_tokens, batch.positions);
  const auto starts = staging.take(batch.num_sequences + 1, batch.query_starts);
  const auto lengths = staging.take(batch.num_sequences, batch.seq_lens);
  const auto rows = staging.take(batch.num_sequences, batch.table_rows);
  const auto next = staging.take(wants_next ? batch.num_tokens : 0, tensors.next_tokens);

  std::size_t token = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    const bool given = !sequence.tokens.empty();
    QUIRE_CHECK(static_cast<int>(sequence.tokens.size()) == (given ? sequence.num_tokens : 0) &&
                (given || sequence.num_tokens == 1));
    starts[s] = static_cast<std::int32_t>(token);
    rows[s] = sequence.seat;
    lengths[s] = sequence.first_position + sequence.num_tokens;
    batch.max_query_len = std::max(batch.max_query_len, sequence.num_tokens);
    batch.max_seq_len = std::max(batch.max_seq_len, lengths[s]);
    for (int i = 0; i < sequence.num_tokens; ++i, ++token) {
      ids[token] = given ? sequence.tokens[i] : 0;
      sources[token] = given ? -1 : sequence.seat;
      positions[token] = sequence.first_position + i;
    }
    if (asks(sequence)) {
      std::copy(sequence.tokens.begin() + 1, sequence.tokens.end(), &next[token - sequence.tokens.size()]);
      next[token - 1] = sequence.next_token;
    }
  }
  QUIRE_CHECK(token == static_cast<std::size_t>(plan.num_tokens));
  if (bounds.rows > 0) {  // what may become of it in a graph
    QUIRE_CHECK(batch.max_query_len <= 1 && batch.max_seq_len <= bounds.seq_len);
    batch.max_query_len = 1;
    batch.max_seq_len = bounds.seq_len;
  }
  for (std::size_t s = plan.sequences.size(); s < lengths.size(); ++s, ++token) {  // padding
    starts[s] = static_cast<std::int32_t>(token);
    rows[s] = lengths[s] = ids[token] = positions[token] = 0;
    sources[token] = -1;
  }
  starts[lengths.size()] = static_cast<std::int32_t>(token);
  tensors.batches.assign(config_.cache.lanes.size(), batch);
  for (int lane = 0; lane < config_.cache.layout.num_lanes(); ++lane)
    build_slots(plan, lane, staging, tensors.batches[lane]);
  if (config_.num_state_slots > 0) build_states(plan, staging, tensors);
}

// Where the sequences' fixed states lie.
void BatchBuilder::build_states(const StepPlan& plan, StagingArea& staging, StepTensors& tensors) const {
  const AttentionBatch& batch = tensors.batches.front();
  StateBatch& states = tensors.state_batch;
  states = {batch.num_sequences, batch.num_tokens, batch.max_query_len, batch.query_starts, {}, {}};
  const auto from = staging.take(batch.num_sequences, states.from);
  const auto to = staging.take(batch.num_sequences, states.to);
  std::ranges::fill(from, kNoBlock);  // padding
  std::ranges::fill(to, kNoBlock);
  std::ranges::transform(plan.sequences, from.begin(), &SequencePlan::state_from);
  std::ranges::transform(plan.sequences, to.begin(), &SequencePlan::state_to);
  LongSpans spans;
  for (int s = 0; const SequencePlan& sequence : plan.sequences)
    spans.add(s++, sequence.first_position, sequence.num_tokens);
  states.long_spans = staging.put(spans.spans);
  states.num_chunks = spans.num_chunks;
}

// Where the tokens' keys and values are written, and read.
void BatchBuilder::build_slots(const StepPlan& plan, int lane, StagingArea& staging,
                               AttentionBatch& batch) const {
  const int block_size = config_.block_size();
  const auto group = static_cast<std::size_t>(config_.cache.lanes[lane].group);
  batch.workspace = workspaces_[group];
  batch.block_tables = block_tables_.rows(table_index(lane, 0), config_.max_num_seqs);
  const auto slots = staging.take(batch.num_tokens, batch.slot_mapping);
  auto slot = slots.begin();
  for (const SequencePlan& sequence : plan.sequences) {
    const BlockId* table = &host_tables_[table_index(lane, sequence.seat) * config_.max_table_rows()];
    for (int i = 0; i < sequence.num_tokens; ++i, ++slot) {
      const int position = sequence.first_position + i;
      *slot = table[position / block_size] * block_size + position % block_size;
    }
  }
  std::fill(slot, slots.end(), -1);  // padding
}

// Lanes of a group differ in their block tables alone, which no plan looks at.
void BatchBuilder::plan_attention(std::span<AttentionBatch> batches) const {
  const std::vector<CacheShape::Lane>& lanes = config_.cache.lanes;
  for (std::size_t lane = 0; lane < batches.size(); ++lane) {
    const bool planned = lane > 0 && lanes[lane].group == lanes[lane - 1].group;
    const AttentionShape& shape = shapes_[lanes[lane].group];
    batches[lane].plan =
        planned ? batches[lane - 1].plan : ops::plan_attention(backend_, batches[lane], shape);
  }
}

StepTensors BatchBuilder::build(const StepPlan& plan, StagingArea& staging, const StepBounds& bounds) {
  QUIRE_CHECK(std::max(plan.num_tokens, bounds.rows) <= config_.max_num_batched_tokens);
  changes_.clear();
  const int num_lanes = config_.cache.layout.num_lanes();
  for (const SequencePlan& sequence : plan.sequences) {
    const auto num_rows = static_cast<int>(sequence.new_blocks.size()) / num_lanes;
    QUIRE_CHECK(sequence.first_new_row + num_rows <= config_.max_table_rows());
    auto block = sequence.new_blocks.begin();
    for (int row = sequence.first_new_row; block != sequence.new_blocks.end(); ++row) {
      for (int lane = 0; lane < num_lanes; ++lane, ++block) {
        if (*block == kNoBlock) continue;
        const std::int64_t place = table_index(lane, sequence.seat);
        host_tables_[place * config_.max_table_rows() + row] = *block;
        changes_.push_back({static_cast<std::int32_t>(place), row, *block});
      }
    }
  }
  StepTensors tensors;
  build_tokens(plan, staging, bounds, tensors);
  tensors.table_entries = staging.put(changes_);
  tensors.block_copies = {staging.put(plan.saves), staging.put(plan.block_copies),
                          staging.put(plan.restores)};
  tensors.state_copies = {staging.put(plan.state_copies.saves), {}, staging.put(plan.state_copies.restores)};
  return tensors;
}

}  // namespace quire
