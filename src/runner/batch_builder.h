#pragma once

#include <vector>

#include "layers/step.h"
#include "ops/ops.h"
#include "runner/runtime_config.h"
#include "runner/staging_area.h"
#include "scheduler/step_plan.h"

namespace quire {

// Pairs i32 [n, 2] of blocks, as in the plan: saved to host memory, copied within the device's, restored.
struct BlockCopies {
  Tensor saves, within, restores;
};

// What a step computes, and where, as tensors on the device. Sampler has what is sampled.
struct StepTensors {
  std::vector<AttentionBatch> batches;  // by lane of the cache
  Tensor token_ids;                     // i32 [tokens]
  Tensor source_seats;   // i32 [tokens]: the seat whose last sample is the id, or -1: the id is given
  Tensor next_tokens;    // i32 [tokens], set in spans with kLogprobs; [0] where there is none
  Tensor table_entries;  // i32 [n, 3] changes of the block tables
  BlockCopies block_copies, state_copies;  // to do first
  StateBatch state_batch;                  // where the model has fixed states
};

// What a step of one token a sequence may become in a graph.
struct StepBounds {
  int rows = 0;  // at most so many sequences; 0: it is what the plan says
  int seq_len = 0;
};

// Turns plans into tensors. Keeps each seat's block table over steps.
class BatchBuilder {
 public:
  // groups: the model's states.
  BatchBuilder(Backend& backend, const RuntimeConfig& config, std::span<const StateSpec> groups,
               Workspace& workspace);

  std::size_t staging_bytes() const;  // that build takes at most
  // Writes the plan into `staging`. With bounds, a plan of one token a sequence is padded to that many
  // sequences of length 0, and where its tokens and sequences lie on the device depends on the bounds alone.
  StepTensors build(const StepPlan& plan, StagingArea& staging, const StepBounds& bounds = {});

  // Lets the backend plan the attention of every group, for all its lanes.
  void plan_attention(std::span<AttentionBatch> batches) const;

  std::span<const AttentionShape> attention_shapes() const { return shapes_; }  // by group
  // On the device, as of the table_entries applied.
  const Tensor& block_tables() const { return block_tables_; }

 private:
  struct TableEntry {
    std::int32_t row, column;
    BlockId block;
  };

  void build_tokens(const StepPlan& plan, StagingArea& staging, const StepBounds& bounds,
                    StepTensors& tensors) const;
  void build_states(const StepPlan& plan, StagingArea& staging, StepTensors& tensors) const;
  void build_slots(const StepPlan& plan, int lane, StagingArea& staging, AttentionBatch& batch) const;
  // Where the first of a seat's blocks in a lane stands in the tables.
  std::int64_t table_index(int lane, int seat) const {
    return std::int64_t{lane} * config_.max_num_seqs + seat;
  }

  Backend& backend_;
  const RuntimeConfig& config_;
  std::vector<AttentionShape> shapes_;  // by group
  std::vector<Tensor> workspaces_;      // of attention, by group
  Tensor block_tables_;                 // i32 [lanes * max_num_seqs, max_table_rows]
  std::vector<BlockId> host_tables_;    // the same, on the host
  std::vector<TableEntry> changes_;     // of this plan
};

}  // namespace quire
