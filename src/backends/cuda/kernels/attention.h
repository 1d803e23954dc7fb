#pragma once

#include <climits>

#include "backends/cuda/kernels/launch.h"
#include "ops/ops.h"

namespace quire::cuda {

// Attention over the paged cache: out [tokens, num_heads * head_dim] = softmax(scores of q · kᵀ) · v, causal,
// each query over the last `window` positions up to its own, which shape and scores have alike. Block-table
// entries of blocks that no query of a tile sees are not read. Each part has a workspace (u8, zeroed when
// allocated, 256-byte aligned, its own) and a plan, made once a step before the layers: which block of
// threads computes what, worked out on the device from the lengths there, so that a captured graph stays
// right when they change. Host-side counts in `batch` (num_sequences, num_tokens, max_query_len, max_seq_len)
// are upper bounds of what the device tensors hold.

// Calls f.template operator()<kDim>() with a head size that the kernels of the two parts below are made for;
// whether it is one.
template <typename F>
constexpr bool dispatch_head_dim(int head_dim, F&& f) {
  return dispatch<64, 80, 96, 128, 256>(head_dim, f);
}
// Whether those kernels can be used; the one in fixed order always can.
constexpr bool has_fast_attention(DType dtype, int head_dim) {
  return dtype != DType::kF32 && dispatch_head_dim(head_dim, [&]<int>() {});
}

// The window of a shape or of scores as kernels take it: more than any position where there is none.
constexpr int window_of(const auto& of) { return of.window == 0 ? INT_MAX : of.window; }

// What the kernels of one layer read and write.
struct AttentionCall {
  Tensor out;  // [tokens, num_heads * head_dim]
  Tensor q;    // [tokens, num_heads * head_dim], rows strided
  KvCacheLayer cache;
  AttentionScores scores;  // ALiBi is for fixed_order_attention alone
  Tensor workspace;
};

constexpr float kLog2E = 1.44269504F;

// AttentionScores as kernels take them. From products to scores in base 2: outer * product, or where there is
// a cap outer * tanh(inner * product).
struct ScoreArgs {
  explicit ScoreArgs(const AttentionScores& scores)
      : outer((scores.cap > 0 ? scores.cap : scores.scale) * kLog2E),
        inner(scores.cap > 0 ? scores.scale / scores.cap : 0),
        window(window_of(scores)),
        sinks(scores.sinks.data_as<const float>()) {}

  float outer;
  float inner;         // 0: there is no cap
  int window;          // positions that a token sees
  const float* sinks;  // or null
};

// The sequences of a batch as kernels take them.
struct SequenceArgs {
  explicit SequenceArgs(const AttentionBatch& batch)
      : query_starts(batch.query_starts.data_as<const int>()),
        seq_lens(batch.seq_lens.data_as<const int>()),
        table_rows(batch.table_rows.data_as<const int>()),
        block_tables(batch.block_tables.data_as<const int>()),
        table_stride(batch.block_tables.stride(0)),
        num_sequences(batch.num_sequences) {}

  const int* query_starts;
  const int* seq_lens;
  const int* table_rows;
  const int* block_tables;
  std::int64_t table_stride;
  int num_sequences;
};

// Sequences of one query token. Rows of other sequences, and of sequences of length 0, are left alone. The
// workspace's bytes are a multiple of 256.
std::size_t decode_workspace_bytes(const AttentionShape& shape, int num_sms);
void plan_decode(const LaunchContext& context, const AttentionBatch& batch, const AttentionShape& shape,
                 const Tensor& workspace);
void decode_attention(const LaunchContext& context, const AttentionCall& call, const AttentionBatch& batch,
                      const AttentionShape& shape);

// Few sequences of one query token each, and nothing else: rotate_and_store and attention in one launch. Of a
// cache of the activations' type; on devices with clusters. Needs no plan or workspace; queries are left as
// they were.
bool cluster_attention_supports(const LaunchContext& context, const AttentionInput& input,
                                const KvCacheLayer& cache, const AttentionBatch& batch,
                                const AttentionScores& scores);
void cluster_attention(const LaunchContext& context, const Tensor& out, const AttentionInput& input,
                       const KvCacheLayer& cache, const AttentionBatch& batch, const AttentionScores& scores);

// Sequences of more than one query token, or all of them: then a row's sums are taken in an order that
// depends on its position alone, not on the batch, nor on how the sequence was cut into chunks. The others'
// rows are left alone.
enum class PrefillOf { kChunks, kAllInFixedOrder };
std::size_t prefill_workspace_bytes(const AttentionShape& shape, int num_sms,
                                    PrefillOf of = PrefillOf::kChunks);
void plan_prefill(const LaunchContext& context, const AttentionBatch& batch, const AttentionShape& shape,
                  const Tensor& workspace, PrefillOf of = PrefillOf::kChunks);
void prefill_attention(const LaunchContext& context, const AttentionCall& call, const AttentionBatch& batch,
                       const AttentionShape& shape, PrefillOf of = PrefillOf::kChunks);

// All sequences in a fixed order, too, on the plain cores: takes float32, ALiBi and heads of up to
// 256 dimensions, or a multiple of 16 up to 512. Needs no plan or workspace.
void fixed_order_attention(const LaunchContext& context, const AttentionCall& call,
                           const AttentionBatch& batch, const AttentionShape& shape);

}  // namespace quire::cuda
