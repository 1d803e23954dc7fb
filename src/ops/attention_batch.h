#pragma once

#include <memory>

#include "base/tensor.h"
#include "ops/cache_code.h"

namespace quire {

// One layer of the paged KV cache. Keys and values of one (block, head) lie side by side, with their scales
// behind them; the strides say how. A row of codes stands for its scale times what each code stands for.
struct KvCacheLayer {
  Tensor keys;    // [num_blocks, num_kv_heads, block_size, head_dim], of the activations' type; or u8, codes
  Tensor values;  // the same
  CacheCode code = CacheCode::kNone;
  Tensor key_scales = {};    // f32 [num_blocks, num_kv_heads, block_size, 1], of codes
  Tensor value_scales = {};  // the same
};

// What is fixed of attention in a group of layers for the life of a runner, on one rank.
struct AttentionShape {
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int block_size = 0;
  int max_num_seqs = 0;
  int max_num_tokens = 0;  // of one step
  int max_seq_len = 0;
  int window = 0;  // positions a query attends to, its own included; 0: all up to its own
  CacheCode code = CacheCode::kNone;
};

// What a backend works out once a step for all layers of a group; its own affair.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
};

// Which tokens a step computes and where their keys and values live in a lane of the cache. All tensors are
// int32 on the backend's device. Sequence i owns the query rows [query_starts[i], query_starts[i + 1]),
// the last ones of its seq_lens[i] tokens.
struct AttentionBatch {
  int num_sequences = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;
  Tensor query_starts;  // [num_sequences + 1]
  Tensor seq_lens;      // [num_sequences] tokens in the cache once this step has run
  Tensor table_rows;    // [num_sequences] row of block_tables
  Tensor block_tables;  // [max_num_seqs, max_model_len / block_size, rounded up] block ids
  Tensor positions;     // [num_tokens]
  Tensor slot_mapping;  // [num_tokens] block id * block_size + offset in the block; -1: not stored
  Tensor workspace;     // u8 [Backend::attention_workspace_bytes], or undefined where that is 0
  std::shared_ptr<const AttentionPlan> plan;  // of Backend::plan_attention, for this batch and its group
};

}  // namespace quire
