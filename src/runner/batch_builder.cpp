#include "runner/batch_builder.h"

#include <algorithm>

#include "ops/ops.h"

namespace quire {

BatchBuilder::BatchBuilder(Backend& backend, const RuntimeConfig& config, std::span<const StateSpec> groups)
    : backend_(backend), config_(config), sampling_(backend, config) {
  staging_device_ = backend.allocate(staging_bytes(), MemoryKind::kDevice);
  for (const StateSpec& group : groups) {
    shapes_.push_back({group.num_heads, group.num_kv_heads, group.head_dim, config.block_size,
                       config.max_num_seqs, config.max_num_batched_tokens, config.max_model_len,
                       group.window});
    workspaces_.push_back(allocate_workspace(backend, backend.attention_workspace_bytes(shapes_.back())));
  }
  const std::int64_t rows = config.max_num_seqs;
  const std::int64_t cols = config.max_blocks_per_sequence();
  host_tables_.resize(static_cast<std::size_t>(rows * cols));
  table_buffer_ = backend.allocate(host_tables_.size() * sizeof(BlockId), MemoryKind::kDevice);
  block_tables_ = Tensor(table_buffer_.data(), DType::kI32, {rows, cols}, backend.device());
}

std::size_t BatchBuilder::staging_bytes() const {
  const auto tokens = static_cast<std::size_t>(config_.max_num_batched_tokens);
  const auto sequences = static_cast<std::size_t>(config_.max_num_seqs);
  const std::size_t token_arrays = 4 * tokens * sizeof(std::int32_t);
  const std::size_t sequence_arrays = 4 * (sequences + 1) * sizeof(std::int32_t);
  // Every slot could get a whole table of cached blocks.
  const std::size_t tables =
      3 * sequences * static_cast<std::size_t>(config_.max_blocks_per_sequence()) * sizeof(std::int32_t);
  const std::size_t copies = sequences * sizeof(BlockCopy);  // of the block that a sequence writes next
  const std::size_t swaps = 2 * static_cast<std::size_t>(config_.num_host_blocks) * sizeof(BlockCopy);
  constexpr std::size_t kAlignmentSlack = 64 * 16;
  return token_arrays + sequence_arrays + tables + copies + swaps + kAlignmentSlack +
         sampling_.staging_bytes();
}

BlockId BatchBuilder::block_of(int slot, int position) const {
  const std::int64_t index =
      std::int64_t{slot} * config_.max_blocks_per_sequence() + position / config_.block_size;
  return host_tables_[static_cast<std::size_t>(index)];
}

void BatchBuilder::record_changes(const StepPlan& plan) {
  changes_.clear();
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.start) sampling_.start(sequence);
    int index = sequence.first_new_block;
    QUIRE_CHECK(index + static_cast<int>(sequence.new_blocks.size()) <= config_.max_blocks_per_sequence());
    for (const BlockId block : sequence.new_blocks) {
      host_tables_[static_cast<std::size_t>(sequence.slot) * config_.max_blocks_per_sequence() + index] =
          block;
      changes_.insert(changes_.end(), {sequence.slot, index, block});
      ++index;
    }
  }
}

void BatchBuilder::build_tokens(const StepPlan& plan, StagingArea& staging, int min_rows,
                                StepTensors& tensors) const {
  AttentionBatch batch;
  batch.num_sequences = std::max(static_cast<int>(plan.sequences.size()), min_rows);
  batch.num_tokens = std::max(plan.num_tokens, min_rows);
  batch.block_tables = block_tables_;
  const auto ids = staging.take<std::int32_t>(DType::kI32, batch.num_tokens, tensors.token_ids);
  const auto sources = staging.take<std::int32_t>(DType::kI32, batch.num_tokens, tensors.source_slots);
  const auto positions = staging.take<std::int32_t>(DType::kI32, batch.num_tokens, batch.positions);
  const auto slots = staging.take<std::int32_t>(DType::kI32, batch.num_tokens, batch.slot_mapping);
  const auto starts = staging.take<std::int32_t>(DType::kI32, batch.num_sequences + 1, batch.query_starts);
  const auto lengths = staging.take<std::int32_t>(DType::kI32, batch.num_sequences, batch.seq_lens);
  const auto rows = staging.take<std::int32_t>(DType::kI32, batch.num_sequences, batch.table_rows);

  std::size_t token = 0;
  for (std::size_t s = 0; s < plan.sequences.size(); ++s) {
    const SequencePlan& sequence = plan.sequences[s];
    const bool given = !sequence.tokens.empty();
    QUIRE_CHECK(static_cast<int>(sequence.tokens.size()) == (given ? sequence.num_tokens : 0) &&
                (given || sequence.num_tokens == 1));
    starts[s] = static_cast<std::int32_t>(token);
    rows[s] = sequence.slot;
    lengths[s] = sequence.first_position + sequence.num_tokens;
    batch.max_query_len = std::max(batch.max_query_len, sequence.num_tokens);
    batch.max_seq_len = std::max(batch.max_seq_len, lengths[s]);
    for (int i = 0; i < sequence.num_tokens; ++i, ++token) {
      const int position = sequence.first_position + i;
      ids[token] = given ? sequence.tokens[static_cast<std::size_t>(i)] : 0;
      sources[token] = given ? -1 : sequence.slot;
      positions[token] = position;
      slots[token] = block_of(sequence.slot, position) * config_.block_size + position % config_.block_size;
    }
  }
  QUIRE_CHECK(token == static_cast<std::size_t>(plan.num_tokens));
  if (min_rows > 0) {  // what may become of it in a graph
    batch.max_query_len = 1;
    batch.max_seq_len = config_.max_model_len;
  }
  for (std::size_t s = plan.sequences.size(); s < lengths.size(); ++s, ++token) {  // padding
    starts[s] = static_cast<std::int32_t>(token);
    rows[s] = lengths[s] = ids[token] = positions[token] = 0;
    sources[token] = slots[token] = -1;
  }
  starts[lengths.size()] = static_cast<std::int32_t>(token);
  tensors.batches.assign(shapes_.size(), batch);
  for (std::size_t group = 0; group < shapes_.size(); ++group)
    tensors.batches[group].workspace = workspace_of(workspaces_[group]);
}

void BatchBuilder::plan_attention(std::span<AttentionBatch> batches) const {
  for (std::size_t group = 0; group < batches.size(); ++group)
    batches[group].plan = ops::plan_attention(backend_, batches[group], shapes_[group]);
}

StepTensors BatchBuilder::build(const StepPlan& plan, StagingArea& staging, int min_rows) {
  QUIRE_CHECK(std::max(plan.num_tokens, min_rows) <= config_.max_num_batched_tokens);
  StepTensors tensors;
  staging.clear();
  sampling_.begin_step();
  record_changes(plan);
  build_tokens(plan, staging, min_rows, tensors);
  tensors.sampling = sampling_.build(plan, staging);
  tensors.table_entries = staging.take_rows(changes_, 3);
  const auto take_copies = [&staging](const std::vector<BlockCopy>& copies) {
    std::vector<std::int32_t> pairs;
    for (const BlockCopy& copy : copies) pairs.insert(pairs.end(), {copy.from, copy.to});
    return staging.take_rows(pairs, 2);
  };
  tensors.saves = take_copies(plan.saves);
  tensors.block_copies = take_copies(plan.block_copies);
  tensors.restores = take_copies(plan.restores);
  staging.upload();
  return tensors;
}

}  // namespace quire
