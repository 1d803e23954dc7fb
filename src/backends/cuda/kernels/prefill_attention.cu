// Prefill attention's plan, and which kernel computes it. The plan lists the tiles of kTileRows (token, head)
// rows that the batch's sequences make: the longest sequence first, and its last tokens first, so that the
// last tiles to start are short, and that tiles which run at the same time read the same keys, out of L2. One
// block of threads; reads 12 bytes a sequence, writes 16 a tile.
#include <algorithm>
#include <bit>

#include "backends/cuda/kernels/prefill_attention.h"
#include "backends/cuda/kernels/scan.cuh"

namespace quire::cuda {
namespace {

constexpr int kPlanThreads = 1024;
constexpr int kMaxPackedHeads = 16;
// Pieces of a tile's keys: as many as there are SMs for, and none that takes less time than adding them up.
constexpr int kMaxPieces = 32;
constexpr int kLeastKeysOfAPiece = 1024;

// The most query heads that divide the group evenly.
int packed_heads(const AttentionShape& shape) {
  const int group = shape.num_heads / shape.num_kv_heads;
  int heads = kMaxPackedHeads;
  while (group % heads != 0) --heads;
  return heads;
}

int tile_tokens(const AttentionShape& shape) { return kTileRows / packed_heads(shape); }

struct PlanParams {
  SequenceArgs sequences;
  PrefillPlan* plan;
  int tile_tokens;
  int least_tokens;    // of a sequence for prefill
  int keys_per_class;  // sequences are sorted by length / keys_per_class
};

// The query tokens of a sequence, as tiles.
struct Queries {
  int row;       // of q, of the first
  int tokens;    // 0: not a sequence for prefill
  int position;  // of the first
  int tiles;
  int length_class;

  __device__ Queries(const PlanParams& p, int sequence) {
    const int length = p.sequences.seq_lens[sequence];
    row = p.sequences.query_starts[sequence];
    tokens = p.sequences.query_starts[sequence + 1] - row;
    if (tokens < p.least_tokens || length < tokens) tokens = 0;
    position = length - tokens;
    tiles = (tokens + p.tile_tokens - 1) / p.tile_tokens;
    length_class = max(0, kPlanThreads - 1 - length / p.keys_per_class);
  }
};

bool has_work(const AttentionBatch& batch, PrefillOf of) {
  return of == PrefillOf::kAllInFixedOrder ? batch.num_tokens > 0 : batch.max_query_len > 1;
}

// Counting sort of sequences by class; those of one class come in any order: no result depends on it.
__global__ __launch_bounds__(kPlanThreads) void plan_kernel(const PlanParams p) {
  __shared__ int places[kPlanThreads];  // first how many tiles a class has, then where its next one goes
  admit_next_kernel();
  wait_for_kernels();
  const int thread = threadIdx.x;
  places[thread] = 0;
  __syncthreads();
  for (int s = thread; s < p.sequences.num_sequences; s += kPlanThreads) {
    const Queries queries(p, s);
    atomicAdd(&places[queries.length_class], queries.tiles);
  }
  __syncthreads();
  int num_tiles;
  places[thread] = exclusive_sum_of_block(places[thread], num_tiles);
  if (thread == 0) *p.plan = {num_tiles, 0};
  __syncthreads();

  auto* tiles = reinterpret_cast<PrefillTile*>(p.plan + 1);
  const int lane = thread % 32;
  for (int s = thread / 32; s < p.sequences.num_sequences; s += kPlanThreads / 32) {
    const Queries queries(p, s);
    int place = 0;
    if (lane == 0) place = atomicAdd(&places[queries.length_class], queries.tiles);
    place = __shfl_sync(0xFFFFFFFFU, place, 0);
    for (int i = lane; i < queries.tiles; i += 32) {
      const int first = i * p.tile_tokens;
      tiles[place + queries.tiles - 1 - i] = {queries.row + first, min(p.tile_tokens, queries.tokens - first),
                                              queries.position + first, p.sequences.table_rows[s]};
    }
  }
}

// A tile's pieces, of which all fit on the SMs at once.
int pieces_of(const LaunchContext& context, const AttentionBatch& batch, const PrefillParams& params) {
  const int keys = std::min(batch.max_seq_len, params.scores.window) / kLeastKeysOfAPiece;
  return std::clamp(context.num_sms / max_prefill_work(batch, params), 1, std::clamp(keys, 1, kMaxPieces));
}

// The plan, and the tiles behind it. Parts follow, aligned for vectors of 8 floats.
std::size_t plan_bytes(const AttentionShape& shape) {
  const int tiles = shape.max_num_tokens / tile_tokens(shape) + shape.max_num_seqs;
  const std::size_t bytes = sizeof(PrefillPlan) + static_cast<std::size_t>(tiles) * sizeof(PrefillTile);
  return (bytes + 31) / 32 * 32;
}

}  // namespace

int max_prefill_work(const AttentionBatch& batch, const PrefillParams& params) {
  return (batch.num_tokens / params.tile_tokens + batch.num_sequences) * params.head_tiles;
}

std::size_t prefill_workspace_bytes(const AttentionShape& shape, int num_sms, PrefillOf of) {
  const bool has_parts = of == PrefillOf::kChunks && is_hopper() &&
                         std::min(shape.max_seq_len, window_of(shape)) >= 2 * kLeastKeysOfAPiece;
  const std::size_t parts =
      has_parts ? static_cast<std::size_t>(num_sms) * PrefillPart::floats(shape.head_dim) : 0;
  return plan_bytes(shape) + parts * sizeof(float);
}

void plan_prefill(const LaunchContext& context, const AttentionBatch& batch, const AttentionShape& shape,
                  const Tensor& workspace, PrefillOf of) {
  if (!has_work(batch, of)) return;
  const PlanParams p{.sequences = SequenceArgs(batch),
                     .plan = workspace.data_as<PrefillPlan>(),
                     .tile_tokens = tile_tokens(shape),
                     .least_tokens = of == PrefillOf::kChunks ? 2 : 1,
                     .keys_per_class = batch.max_seq_len / kPlanThreads + 1};
  launch(context, "plan_prefill", plan_kernel, 1, kPlanThreads, 0, p);
}

PrefillParams prefill_params(const AttentionCall& call, const AttentionBatch& batch,
                             const AttentionShape& shape, PrefillOf of) {
  PrefillParams p{.scores = ScoreArgs(call.scores)};
  p.far_from_cap = of == PrefillOf::kChunks ? kFarFromCap : 0;
  p.out = call.out.data();
  p.q = call.q.data();
  p.keys = call.cache.keys.data();
  p.values = call.cache.values.data();
  p.block_tables = batch.block_tables.data_as<const int>();
  p.plan = call.workspace.data_as<PrefillPlan>();
  p.out_stride = call.out.stride(0);
  p.q_stride = call.q.stride(0);
  p.block_stride = static_cast<int>(call.cache.keys.stride(0));
  p.head_stride = static_cast<int>(call.cache.keys.stride(1));
  p.table_stride = batch.block_tables.stride(0);
  p.group = shape.num_heads / shape.num_kv_heads;
  p.packed_heads = packed_heads(shape);
  p.tile_tokens = tile_tokens(shape);
  p.head_tiles = shape.num_heads / p.packed_heads;
  p.block_shift = std::countr_zero(static_cast<unsigned>(shape.block_size));
  p.code = call.cache.code;
  p.key_scales = call.cache.key_scales.data_as<const float>();
  p.value_scales = call.cache.value_scales.data_as<const float>();
  p.scale_block_stride = static_cast<int>(call.cache.key_scales.stride(0));
  p.scale_head_stride = static_cast<int>(call.cache.key_scales.stride(1));
  return p;
}

void prefill_attention(const LaunchContext& context, const AttentionCall& call, const AttentionBatch& batch,
                       const AttentionShape& shape, PrefillOf of) {
  if (!has_work(batch, of)) return;
  PrefillParams params = prefill_params(call, batch, shape, of);
  if (!is_hopper()) return prefill_attention_mma(context, params, batch, shape, call.q.dtype());
  if (of == PrefillOf::kChunks) params.pieces = pieces_of(context, batch, params);
  params.parts = reinterpret_cast<float*>(call.workspace.data_as<std::uint8_t>() + plan_bytes(shape));
  prefill_attention_hopper(context, params, call, batch, shape);
  if (params.pieces > 1) merge_prefill(context, params, batch, shape, call.q.dtype());
}

}  // namespace quire::cuda
